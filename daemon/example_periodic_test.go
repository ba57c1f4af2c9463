package daemon_test

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
)

// A report at three in the morning, by Berlin's clocks, and prices that are updated every ten minutes.
// [coordinator.Coordinator.Register] takes each of them as the agent of a daemon.
func ExampleCron() {
	report := daemon.Cron("0 3 * * *", func(ctx context.Context, a *daemon.Assignment, due time.Time) error {
		return writeReport(ctx, due)
	})
	report.TimeZone = "Europe/Berlin"
	prices := daemon.Every(10*time.Minute, updatePrices)
	prices.Missed = daemon.MissedSkip

	fmt.Println(report.Validate(), prices.Validate())
	fmt.Println(daemon.Cron("0 0 31 2 *", updatePrices).Validate())
	// Output:
	// <nil> <nil>
	// periodic daemon: cron line "0 0 31 2 *" never comes: there is no such day
}

func writeReport(context.Context, time.Time) error { return nil }

func updatePrices(context.Context, *daemon.Assignment, time.Time) error { return nil }
