//go:build !unix

package testproc

import "time"

// ProcessTime returns the processor time of this process so far, 0 if it is unknown.
func ProcessTime() time.Duration { return 0 }
