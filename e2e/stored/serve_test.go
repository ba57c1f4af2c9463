package stored

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/testproc"
)

// serves lets a node of today go on with the copy.
func (f *fixture) serves() {
	f.t.Helper()
	received := &bodies{}
	hook := httptest.NewServer(received)
	f.t.Cleanup(hook.Close)
	f.start(hook.URL)
	f.leads()
	if f.kind == Bucket {
		f.queues()
	} else {
		f.outbox(received)
	}
}

// start starts a node, which ends with the test.
func (f *fixture) start(webhook string) {
	f.t.Helper()
	config, logged := filepath.Join(f.dir, "emitd.yaml"), filepath.Join(f.dir, "log")
	if err := os.WriteFile(config, []byte(f.kind.Config(webhook)), 0o600); err != nil {
		f.t.Fatal(err)
	}
	log, err := os.Create(logged)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.Command(drill.Binary(f.t), append([]string{"serve", "--config", config, "--node-name", "today", "--listen", "127.0.0.1:0"}, f.Args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	proc, err := testproc.Start(cmd)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		proc.Signal(syscall.SIGTERM)
		<-proc.Done
		log.Close()
		if err := proc.Err(); err != nil {
			f.t.Errorf("the node ended with %v", err)
		}
		if f.t.Failed() {
			f.t.Logf("log of the node:\n%s", f.file(logged))
		}
	})
}

// leads waits until the node leads the next term and runs the units, and compares numbers with the old ones.
func (f *fixture) leads() {
	f.t.Helper()
	var now Observed
	f.until("the node runs all units", func() bool {
		now = Observed{}
		f.decode(f.output(f.observe, f.Store), &now)
		active := 0
		for _, u := range now.Snapshot.Units {
			if u.State == "active" && u.Unit != "acme:broken/0" && u.Generation > f.generation(u.Unit) {
				active++
			}
		}
		return active == f.units()
	})
	if old, term := f.released.Snapshot.Term, now.Snapshot.Term; term.Term <= old.Term || term.TermOrdinal != old.TermOrdinal+1 {
		f.t.Errorf("term %+v after %+v", term, old)
	}
	for _, u := range now.Snapshot.Units {
		if old := f.generation(u.Unit); u.Generation < old {
			f.t.Errorf("%s: generation %d after %d", u.Unit, u.Generation, old)
		}
	}
}

// units returns how many units the store had active.
func (f *fixture) units() (n int) {
	for _, u := range f.released.Snapshot.Units {
		if u.State == "active" && u.Unit != "acme:broken/0" {
			n++
		}
	}
	return n
}

// generation returns the generation that the store had for a unit.
func (f *fixture) generation(name string) int64 {
	i := slices.IndexFunc(f.released.Snapshot.Units, func(u unit) bool { return u.Unit == name })
	if i < 0 {
		return 0
	}
	return f.released.Snapshot.Units[i].Generation
}

// bodies is a receiver that refuses nothing.
type bodies struct {
	mu  sync.Mutex
	got []string
}

func (b *bodies) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got = append(b.got, r.Header.Get("emitd-subscription")+" "+string(body))
}

// outbox checks that what was pending or has become due is delivered once, and that nothing else has moved.
func (f *fixture) outbox(received *bodies) {
	f.t.Helper()
	f.until("nothing is pending", func() bool {
		out := string(f.emitd("outbox", "stats", "skips"))
		return strings.Contains(out, `"pending": 0`) && strings.Contains(out, `"delayed": 1`)
	})
	f.until("the other subscription is as far", func() bool {
		received.mu.Lock()
		defer received.mu.Unlock()
		return len(received.got) >= 4
	})
	received.mu.Lock()
	slices.Sort(received.got)
	want := []string{`holds {"order": 4}`, `holds {"order": 5}`, `skips {"order": 4}`, `skips {"order": 5}`}
	if !slices.Equal(received.got, want) {
		f.t.Errorf("received %q, want %q", received.got, want)
	}
	received.mu.Unlock()
	f.compare([][]string{{"outbox", "ls", "holds"}, {"outbox", "ls", "skips"}})
}

// settings are those of the queue mail, as program make has declared it.
const settings = `{"name": "mail", "claims": "durable", "visibility_ms": 3600000, "dedup_window_ms": 2592000000, "retry": {"max_attempts": 5}}`

// queues checks the jobs and the settings, and works on the jobs.
func (f *fixture) queues() {
	f.t.Helper()
	f.until("all brokers", func() bool { return strings.Count(string(f.emitd("queue", "ls")), `"broker": "127`) == 3 })
	_, online := f.kind.Reads()
	f.compare(online)
	f.same("queue declare mail", []byte(settings), f.emitd("queue", "declare", "mail")) // without flags it changes nothing
	// The claim of before is completed with its token; a waiting job is claimed and completed.
	f.emitd("queue", "complete", "mail", "active", "--token", f.facts.Token)
	var jobs []struct {
		ID, Token string
		Payload   json.RawMessage
		Bytes     []byte `json:"payload_base64"`
	}
	f.decode(f.emitd("queue", "claim", "mail", "--type", "email:send"), &jobs)
	if len(jobs) != 1 || jobs[0].ID != "waiting" || !strings.Contains(string(jobs[0].Payload), `"ada"`) {
		f.t.Fatalf("claimed %+v", jobs)
	}
	f.emitd("queue", "complete", "mail", "waiting", "--token", jobs[0].Token)
	jobs = nil
	f.decode(f.emitd("queue", "claim", "wide", "--type", "object"), &jobs)
	if len(jobs) != 1 || string(jobs[0].Bytes) != ObjectPayload {
		f.t.Fatalf("claimed %d jobs, %.200s, want the one whose payload is an object, with %d bytes", len(jobs), jobs, len(ObjectPayload))
	}
	f.emitd("queue", "complete", "wide", jobs[0].ID, "--token", jobs[0].Token)
	var left []struct{ ID, State string }
	f.decode(f.emitd("queue", "peek", "mail"), &left)
	states := map[string]string{}
	for _, job := range left {
		states[job.ID] = job.State
	}
	if states["dead"] != "dead" || states["delayed"] != "delayed" || states["active"] != "" || states["waiting"] != "" {
		f.t.Errorf("jobs that are left: %v", states)
	}
}
