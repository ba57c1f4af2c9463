package docs

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
)

// TestFailoverRuns follows the how-to's steps for a failover, with its own commands: a node with the URL
// of both servers leads, the primary is stopped, the standby is promoted, and the node leads there.
func TestFailoverRuns(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "docs/how-to/run-a-cluster.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Fail Postgres over\n")
	section, _, _ = strings.Cut(section, "\n## ")
	stop := regexp.MustCompile("`pg_ctl ([^`]+)`").FindAllStringSubmatch(section, -1)
	promote := regexp.MustCompile("(?s)```sql\n(.*?)```").FindAllStringSubmatch(section, -1)
	url := regexp.MustCompile("`postgres://app@a,b/app\\?(target_session_attrs=[a-z-]+)`").FindStringSubmatch(section)
	if len(stop) != 1 || len(promote) != 1 || url == nil {
		t.Fatalf("the section has other commands: %q, %q, %q", stop, promote, url)
	}

	primary, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = primary.Close() })
	standby, err := primary.Standby(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = standby.Close() })
	bin := filepath.Join(t.TempDir(), "emitd")
	if out, err := build(bin, "./cmd/emitd"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s := newSession(t, bin)
	defer s.end()
	s.env = []string{fmt.Sprintf("EMITD_STORE_URL=postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?sslmode=disable&%s", primary.Port, standby.Port, url[1]), "EMITD_PROFILE=fast"}
	s.run("the node", "emitd serve --listen 127.0.0.1:0 --node-name a")

	// Either everything that the node wrote is on the standby, or the newest rows are lost, as the page
	// says.
	args := strings.Fields(strings.ReplaceAll(stop[0][1], "DATA", primary.Data()))
	if _, err := primary.Tool("pg_ctl", args...); err != nil {
		t.Fatal(err)
	}
	if out, err := primary.Tool("pg_ctl", "status", "-D", primary.Data()); err == nil {
		t.Fatalf("the former primary lives: %s", out)
	}
	conn, err := pgx.Connect(t.Context(), standby.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), promote[0][1]); err != nil {
		t.Fatal(err)
	}
	var promoted time.Time
	if err := conn.QueryRow(t.Context(), "select clock_timestamp()").Scan(&promoted); err != nil {
		t.Fatal(err)
	}
	// The replicated rows also name a leader and its units, so only a heartbeat after the promotion shows
	// that the node is alive.
	beats := func() (alive bool) {
		err := conn.QueryRow(t.Context(), "select coalesce(max(last_heartbeat_at) > $1, false) from emitd.node", promoted).Scan(&alive)
		return err == nil && alive
	}
	var lead string
	again, ended := time.NewTicker(100*time.Millisecond), time.After(time.Minute)
	defer again.Stop()
	for {
		out, err := s.command(t.Context(), bin, "status", "-o", "json").CombinedOutput()
		if lead = string(out); err == nil && regexp.MustCompile(`"node": *"a"`).MatchString(lead) && strings.Contains(lead, `"active"`) && beats() {
			break
		}
		select {
		case <-again.C:
		case <-ended:
			t.Fatalf("nobody leads on the standby: %v\n%s", err, lead)
		}
	}
}
