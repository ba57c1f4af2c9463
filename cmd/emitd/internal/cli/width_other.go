//go:build !unix

package cli

// terminalWidth returns how many columns a terminal has; 0 if it does not say.
func terminalWidth(any) int { return 0 }
