//go:build !unix

package testproc

import "time"

// Used returns the processor time of this process so far, 0 if it is unknown.
func Used() time.Duration { return 0 }
