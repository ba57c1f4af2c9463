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

// watchFiles reads tokens and certificates when their files differ from those in use, at once and then at every
// interval, until done is closed. It polls, because programs that renew certificates do not send signals. Files
// that cannot be read, or are half-written, are read again at the next check; an error is logged once.
func (h *host) watchFiles(done <-chan struct{}, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for logged := ""; ; {
		if now, changed := h.guard.changed(); changed {
			if err := h.access(); err == nil {
				h.log.Info("tokens and certificates reloaded")
			} else if text := now + err.Error(); text != logged {
				logged = text
				for _, f := range fault.Of(err) {
					h.log.Error("cannot load the changed tokens or certificates; the former ones stay in use", "code", f.Code, "error", f.What)
				}
			}
		}
		select {
		case <-done:
			return
		case <-tick.C:
		}
	}
}

// changed returns the stamp of the files, and whether others are in use. The files may have changed long before
// this is asked: while the process waited for its store, for example.
func (g *guard) changed() (stamp string, changed bool) {
	stamp = g.stamp()
	g.mu.Lock()
	defer g.mu.Unlock()
	return stamp, stamp != g.inUse
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
