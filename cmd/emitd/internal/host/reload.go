package host

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/internal/admin/fault"
)

// reloads serves requests to read the configuration again, until done is closed.
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

// reloadable lists the settings that take effect without a restart. The files of tokens and certificates
// are read again even if their names stay the same.
var reloadable = map[string]bool{"telemetry.log.level": true}

// reload applies the log level, the tokens and the certificates, and logs which other settings have
// changed. A wrong configuration changes nothing.
func (h *host) reload(read func() (*config.Loaded, error)) {
	fresh, err := read()
	if err == nil {
		err = h.access()
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

// access reads tokens and certificates again.
func (h *host) access() error {
	if err := h.guard.load(); err != nil {
		return err
	}
	if h.front != nil {
		h.front.reloadTLS()
	}
	return nil
}

// accessInterval is how often the files of tokens and certificates are checked.
const accessInterval = 10 * time.Second

// watchFiles reads tokens and certificates again when their files have changed, until done is closed. It
// polls, because programs that renew certificates do not send signals. A half-written file is read again
// at the next check.
func (h *host) watchFiles(done <-chan struct{}, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for was := h.guard.stamp(); ; {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		now := h.guard.stamp()
		if now == was {
			continue
		}
		was = now
		if err := h.access(); err != nil {
			for _, f := range fault.Of(err) {
				h.log.Error("cannot load the changed tokens or certificates; the former ones stay in use", "code", f.Code, "error", f.What)
			}
			continue
		}
		h.log.Info("tokens and certificates reloaded")
	}
}

// stamp returns a text that changes when a file of the guard changes.
func (g *guard) stamp() string {
	var b strings.Builder
	t := g.api.TLS
	for _, file := range []string{g.api.TokensFile, t.Cert, t.Key, t.CA, t.ClientCA, t.ClientCert, t.ClientKey} {
		if file == "" {
			continue
		}
		if info, err := os.Stat(file); err == nil {
			fmt.Fprintf(&b, "%d %d %d\n", info.ModTime().UnixNano(), info.Size(), info.Mode())
		} else {
			b.WriteString("none\n")
		}
	}
	return b.String()
}
