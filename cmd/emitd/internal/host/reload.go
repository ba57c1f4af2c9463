package host

import (
	"strings"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
)

// reloads answers wishes to read the configuration again, until done is closed.
func (h *host) reloads(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case read := <-h.Reload:
			h.reload(read)
		}
	}
}

// reloadable are the settings that take effect without a restart. The tokens' file is read again
// even when its name stays.
var reloadable = map[string]bool{"telemetry.log.level": true}

// reload puts the log level and the tokens into force and says what else has changed. A
// configuration that is wrong changes nothing.
func (h *host) reload(read func() (*config.Loaded, error)) {
	fresh, err := read()
	if err == nil {
		err = h.guard.load()
	}
	if err != nil {
		for _, f := range fault.Of(err) {
			h.log.Error("configuration not reloaded", "code", f.Code, "error", f.What)
		}
		return
	}
	h.Level.Set(telemetry.Level(fresh.Telemetry.Log.Level).Level())
	var restart []string
	old := map[string]string{}
	for _, s := range h.Config.Settings() {
		old[s.Key] = s.Value
	}
	for _, s := range fresh.Settings() {
		if s.Value != old[s.Key] && !reloadable[s.Key] {
			restart = append(restart, s.Key)
		}
	}
	h.log.Info("configuration reloaded", "log_level", fresh.Telemetry.Log.Level, "needs_restart", strings.Join(restart, ", "))
}
