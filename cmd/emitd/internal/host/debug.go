package host

import (
	"bytes"
	"encoding/json"
	"net/http"
	"runtime"
	"runtime/pprof"

	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
)

// debug answers calls for what a debug bundle has of a process. Secrets of its configuration are redacted, also where
// they appear in another text.
func (h *host) debug(w http.ResponseWriter, _ *http.Request) {
	out := nodeapi.Process{
		Version: h.Version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Processors: runtime.GOMAXPROCS(0),
		Cluster: h.Config.Cluster, Settings: h.Config.Settings(),
	}
	for _, id := range h.nodes {
		out.Nodes = append(out.Nodes, id.Name)
	}
	var stacks bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil { // 1: stacks without values of arguments
		stacks.WriteString(err.Error())
	}
	out.Goroutines = h.Config.Redact(stacks.String()) // before JSON escapes it; the settings have no secrets
	text, err := json.Marshal(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text)
}
