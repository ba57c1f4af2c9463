//go:build !unix

package cli

// terminalWidth returns 0, because the width is unknown on this system.
func terminalWidth(any) int { return 0 }
