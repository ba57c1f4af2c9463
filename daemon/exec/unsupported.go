//go:build !linux && !darwin

package exec

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/emitd/emitd/daemon"
)

// Guardian does nothing on this system: commands are not supported.
type Guardian struct{}

// NewGuardian returns a guardian that watches nothing.
func NewGuardian(GuardianConfig) *Guardian { return &Guardian{} }

// Close does nothing on this system.
func (*Guardian) Close() error { return nil }

// GuardianMain does nothing on this system.
func GuardianMain() {}

// once returns an error, because commands are not supported on this system.
func (g *agent) once(context.Context, *daemon.Assignment, time.Time) error {
	return fmt.Errorf("run %s: commands as daemons are not supported on %s", g.cfg.ID, runtime.GOOS)
}
