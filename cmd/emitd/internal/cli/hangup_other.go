//go:build !unix

package cli

import (
	"context"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
)

// hangups does nothing, because this system has no SIGHUP.
func hangups(context.Context, func() (*config.Loaded, error)) (<-chan func() (*config.Loaded, error), func()) {
	return nil, func() {}
}
