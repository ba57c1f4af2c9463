//go:build !unix

package cputime

import "time"

// Used returns the processor time of this process so far, 0 where it is not known.
func Used() time.Duration { return 0 }
