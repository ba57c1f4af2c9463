//go:build !planted

package owner

// plantable says whether bugs can be switched on.
const plantable = false

// bug reports whether a bug is switched on: never.
func bug(Bug) bool { return false }
