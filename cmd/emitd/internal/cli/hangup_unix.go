//go:build unix

package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// hangups delivers read at every SIGHUP until ctx ends or stop is called.
func hangups(ctx context.Context, read func() (*config.Loaded, error)) (reload <-chan func() (*config.Loaded, error), stop func()) {
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
			case out <- read:
			}
		}
	}()
	return out, func() {
		signal.Stop(signals)
		cancel()
		<-done
	}
}
