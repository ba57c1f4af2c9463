//go:build !planted

package planted

// Enabled says whether this build can switch bugs on.
const Enabled = false

// Bug reports whether the named bug is switched on: never, in a build without the tag "planted".
// It is inlined to the constant, so that the branch it guards is not compiled.
func Bug(name string) bool { return false }
