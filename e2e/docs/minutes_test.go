package docs

import (
	"encoding/json"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestFirstTenMinutes follows the first two tutorials word for word, as somebody does who has just cloned the repository: a
// cluster, its console in a browser, another leader, a program of one's own whose leader is killed. The program is built
// from the sources first, and all of it takes less than ten minutes.
func TestFirstTenMinutes(t *testing.T) {
	t.Parallel()
	began := time.Now()
	bin := filepath.Join(t.TempDir(), "emitd")
	if out, err := build(bin, "./cmd/emitd"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	built := time.Since(began)
	pages := map[string][]block{}
	for _, b := range blocks(t) {
		pages[b.page] = append(pages[b.page], b)
	}
	for _, page := range []string{"docs/tutorials/first-cluster.md", "docs/tutorials/first-agent.md"} {
		s := newSession(t, bin)
		s.play(pages[page])
		if page == "docs/tutorials/first-cluster.md" {
			s.seesConsole()
		}
		s.end()
		t.Logf("%s is done after %v", page, time.Since(began))
	}
	if took := time.Since(began); took > 10*time.Minute {
		t.Errorf("it took %v, %v of it the build", took, built)
	}
}

// seesConsole opens the address that emitd dev prints, as a browser does.
func (s *session) seesConsole() {
	s.t.Helper()
	out, err := s.command(s.t.Context(), s.bin, "node", "ls", "-o", "json").Output()
	var nodes []struct{ Address string }
	if err != nil || json.Unmarshal(out, &nodes) != nil || len(nodes) == 0 {
		s.t.Fatalf("node ls: %v\n%s", err, out)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+nodes[0].Address+"/", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(page), "<title>") {
		s.t.Errorf("the console answers %s, %v\n%.500s", resp.Status, err, page)
	}
}
