//go:build unix

package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// hangups sends load on the channel reload at every SIGHUP, until ctx ends or stop is called. The receiver
// calls it to read the configuration again.
func hangups(ctx context.Context, load func() (*config.Loaded, error)) (reload <-chan func() (*config.Loaded, error), stop func()) {
	signals, out, done := make(chan os.Signal, 1), make(chan func() (*config.Loaded, error)), make(chan struct{})
	signal.Notify(signals, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
			}
			select {
			case <-ctx.Done():
				return
			case out <- load:
			}
		}
	}()
	return out, func() {
		signal.Stop(signals)
		cancel()
		<-done
	}
}
