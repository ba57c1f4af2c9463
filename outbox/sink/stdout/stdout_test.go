package stdout_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sink/stdout"
)

// pipe is a writer that can block and fail.
type pipe struct {
	mu      sync.Mutex
	text    bytes.Buffer
	broken  bool
	blocks  []uuid.UUID
	release chan struct{}
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken {
		return 0, errors.New("broken pipe")
	}
	for _, id := range p.blocks {
		if bytes.Contains(b, []byte(id.String())) {
			p.mu.Unlock()
			<-p.release
			p.mu.Lock()
			break
		}
	}
	return p.text.Write(b)
}

func (p *pipe) received(t *testing.T) []sinktest.Taken {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []sinktest.Taken
	for line := range strings.Lines(p.text.String()) {
		var m struct{ ID, Key string }
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		out = append(out, sinktest.Taken{ID: m.ID, Key: m.Key})
	}
	return out
}

func TestSuite(t *testing.T) {
	t.Parallel()
	// A writer accepts every line or fails as a whole: it refuses no single message.
	sinktest.Suite{Unsupported: []sinktest.Fault{sinktest.Refuse, sinktest.Falter}, New: func(t *testing.T) *sinktest.Harness {
		p := &pipe{release: make(chan struct{})}
		release := sync.OnceFunc(func() { close(p.release) })
		t.Cleanup(release)
		s, err := stdout.New(t.Context(), stdout.Config{Writer: p})
		if err != nil {
			t.Fatal(err)
		}
		return &sinktest.Harness{Sink: s, Received: p.received, Fail: func(_ *testing.T, f sinktest.Fault, ids []uuid.UUID) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.broken, p.blocks = f == sinktest.Down, ids
			if ids == nil {
				release()
			}
		}}
	}}.Run(t)
}

func TestLines(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "out")
	s, err := stdout.New(t.Context(), stdout.Config{File: file})
	if err != nil {
		t.Fatal(err)
	}
	rows := sinktest.Rows("orders", 4, 0)
	rows[0].Payload = []byte("{\n \"a\": \"<b>\"\n}")
	rows[1].Payload = []byte("plain\ntext")
	rows[2].Payload = []byte{0xff}
	rows[3].Payload = nil
	if errs := s.Deliver(t.Context(), sinktest.Delivery(rows)); errs != nil {
		t.Fatal(errs)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, want := range []string{`"payload":{"a":"<b>"}}`, `"text":"plain\ntext"}`, `"payload_base64":"/w=="}`, `"content-type":"application/json","tenant":"acme"}}`} {
		if !strings.HasSuffix(lines[i], want) || !strings.Contains(lines[i], `"subscription":"billing","shard":`) || !strings.Contains(lines[i], `"generation":7`) {
			t.Errorf("line %d: %s\nwant … %s", i, lines[i], want)
		}
	}
}

func TestNewReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	if _, err := stdout.New(t.Context(), stdout.Config{File: t.TempDir()}); err == nil {
		t.Error("a folder is no file")
	}
	if _, err := stdout.New(t.Context(), stdout.Config{File: "x", Writer: os.Stdout}); err == nil {
		t.Error("both are given")
	}
}
