package sqlite

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// thisHost uses the id of the boot session and CLOCK_MONOTONIC_RAW, which on this system counts
// the time asleep and is not adjusted.
func thisHost() (*host, error) {
	id, err := unix.Sysctl("kern.bootsessionuuid")
	if err != nil {
		return nil, fmt.Errorf("read the boot id of the host: kern.bootsessionuuid: %w", err)
	}
	return &host{
		bootID: id,
		wall:   time.Now,
		sinceBoot: func() (time.Duration, error) {
			var ts unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_RAW, &ts); err != nil {
				return 0, fmt.Errorf("CLOCK_MONOTONIC_RAW: %w", err)
			}
			return time.Duration(ts.Nano()), nil
		},
	}, nil
}
