//go:build !unix

package sqlitelog

import "time"

// cpu is not known here.
func cpu() time.Duration { return 0 }
