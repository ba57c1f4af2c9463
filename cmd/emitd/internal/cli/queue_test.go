package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/queuetest"
)

// queueNode is a node that serves the queue q, with a way to run the program against it.
type queueNode struct {
	*broker.Broker
	t   *testing.T
	url string
}

func newQueueNode(t *testing.T) *queueNode {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.New(broker.Config{Bucket: mem.New(mem.Config{}), StoreID: "s", Owner: "o", Now: time.Now, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Registry().Declare(t.Context(), queue.Settings{Name: "q", Visibility: time.Hour, TTL: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: queue.Settings{Name: "q"}.Spec().ID}, Generation: 1}, 1, "n", func(int64) {})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, a) }()
	t.Cleanup(func() { cancel(); <-ended })
	<-a.ReadyDone()
	h, err := api.New(b, api.Options{Queues: b.Registry(), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = api.Protocols()
	s.Start()
	t.Cleanup(s.Close)
	return &queueNode{Broker: b, t: t, url: s.URL}
}

func (n *queueNode) run(in io.Reader, args ...string) (code int, out, err string) {
	var o, e bytes.Buffer
	code = Main(n.t.Context(), append(append([]string{"queue"}, args...), "--addr", n.url), Streams{In: in, Out: &o, Err: &e})
	return code, o.String(), e.String()
}

func (n *queueNode) waiting() int64 {
	n.t.Helper()
	st, err := n.Stats(n.t.Context(), "q")
	if err != nil {
		n.t.Fatal(err)
	}
	return st.Waiting
}

// TestDeclareChangesWhatIsNamed checks that settings without a flag stay as they are.
func TestDeclareChangesWhatIsNamed(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	want := queue.Settings{Name: "q", Visibility: time.Hour, TTL: 24 * time.Hour, Retry: queue.Retry{MaxAttempts: 5}}
	for _, flags := range [][]string{{"--max-attempts", "5"}, {"--dedup-window", "1m"}, {"--dedup-window", "0s"}} {
		if code, _, err := n.run(nil, append([]string{"declare", "q"}, flags...)...); code != 0 {
			t.Fatal(err)
		}
	}
	all, err := n.Registry().List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if got := all[0]; got.Visibility != want.Visibility || got.TTL != want.TTL || got.Retry.MaxAttempts != 5 || got.DedupWindow != 0 {
		t.Errorf("%+v", got)
	}
	if code, _, err := n.run(nil, "declare", "other", "--max-attempts", "2"); code != 0 {
		t.Error(err)
	}
}

// TestDeclareTooManyShards checks that the refusal has its code, the figures and what to do.
func TestDeclareTooManyShards(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	n.Registry().SetMaxShards(5)
	code, _, text := n.run(nil, "declare", "wide", "--shards", "5")
	if code == 0 {
		t.Fatal("five shards more were declared")
	}
	for _, part := range []string{"E3111", `"wide" cannot have 5 shards`, "the limit of the cluster is 5", "1 are declared", "queue.max_shards"} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
	if code, _, text := n.run(nil, "declare", "wide", "--shards", "4"); code != 0 {
		t.Error(text)
	}
}

// TestDeclaredByTwoAtOnce checks that the settings of one command stay although another command sets
// others at the same time.
func TestDeclaredByTwoAtOnce(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	target, err := url.Parse(n.url)
	if err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	pass := httputil.NewSingleHostReverseProxy(target)
	between := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut || r.Method == http.MethodPatch {
			once.Do(func() {
				if code, _, err := n.run(nil, "declare", "q", "--max-attempts", "7"); code != 0 {
					t.Error(err)
				}
			})
		}
		pass.ServeHTTP(w, r)
	}))
	t.Cleanup(between.Close)
	var out, text bytes.Buffer
	if code := Main(t.Context(), []string{"queue", "declare", "q", "--claims", "durable", "-o", "json", "--addr", between.URL}, Streams{Out: &out, Err: &text}); code != 0 {
		t.Fatal(text.String())
	}
	var shown wire.Declaration
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil || shown.Claims != queue.DurableClaims || shown.Retry == nil || shown.Retry.MaxAttempts != 7 {
		t.Errorf("%s: %v", &out, err)
	}
	all, err := n.Registry().List(t.Context())
	if err != nil || len(all) != 1 || all[0].Claims != queue.DurableClaims || all[0].Retry.MaxAttempts != 7 || all[0].Visibility != time.Hour {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestAdoptIsRepeated checks that a queue of another cluster is adopted once, and that a repetition says
// that the queue is ours already.
func TestAdoptIsRepeated(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, objects := "sqlite://"+filepath.Join(dir, "store.db"), "file://"+filepath.Join(dir, "objects")
	run := func(want int, args ...string) string {
		t.Helper()
		var out, text bytes.Buffer
		if code := Main(t.Context(), append(args, "--store", store), Streams{Out: &out, Err: &text}); code != want {
			t.Fatalf("%q: code %d: %s%s", args, code, &out, &text)
		}
		return out.String()
	}
	run(0, "migrate", "up")
	bucket, err := backend.Bucket(t.Context(), objects)
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.New(broker.Config{Bucket: bucket, StoreID: "another", Owner: "o", Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Registry().Declare(t.Context(), queue.Settings{Name: "q"}); err != nil {
		t.Fatal(err)
	}
	if taken, err := b.Adopt(t.Context(), "q"); taken != 1 || err != nil { // it belongs to the other cluster
		t.Fatal(taken, err)
	}
	for _, line := range []string{"adopted q\n", "q already belongs to this cluster\n"} {
		if out := run(0, "queue", "adopt", "q", "--yes", "--objects", objects); out != line {
			t.Errorf("%q, want %q", out, line)
		}
	}
	run(fault.ExitNotFound, "queue", "adopt", "none", "--yes", "--objects", objects)
}

// TestEnqueueSlowInput checks that lines already read are submitted before the command waits for more,
// and that the timeout applies to each call.
func TestEnqueueSlowInput(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	in, feed := io.Pipe()
	type result struct {
		code     int
		out, err string
	}
	ended := make(chan result, 1)
	const timeout = 2 * time.Second
	go func() {
		code, out, err := n.run(in, "enqueue", "q", "-", "--timeout", timeout.String(), "-o", "name")
		ended <- result{code, out, err}
	}()
	begun := time.Now()
	for line := int64(1); line <= 3 || time.Since(begun) < timeout+time.Second; line++ {
		if _, err := fmt.Fprintf(feed, "line %d\n", line); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); n.waiting() < line; {
			select {
			case r := <-ended:
				t.Fatalf("it has ended: %+v", r)
			default:
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d jobs after %d lines", n.waiting(), line)
			}
		}
	}
	feed.Close()
	if r := <-ended; r.code != 0 || int64(len(strings.Fields(r.out))) != n.waiting() {
		t.Fatalf("%+v", r)
	}
}

// TestImportLargeFile imports more jobs than fit into one call, some of which the queue refuses.
func TestImportLargeFile(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	type job struct {
		ID          string  `json:"id"`
		Status      string  `json:"status"`
		Payload     string  `json:"payload"`
		Type        string  `json:"type"`
		MaxAttempts float64 `json:"maxAttempts"`
	}
	var file struct {
		Jobs           []job `json:"jobs"`
		CompletedTotal int   `json:"completedTotal"`
	}
	for i := range 1000 {
		file.Jobs = append(file.Jobs, job{ID: fmt.Sprint("j", i), Status: "unclaimed", Payload: strings.Repeat("x", 40_000), MaxAttempts: 3})
	}
	file.Jobs[7].MaxAttempts = -5
	file.Jobs[8].Type = strings.Repeat("t", 65)
	text, err := json.Marshal(file)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "queue.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, submitted := range []string{"999 of 999 jobs submitted", "0 of 999 jobs submitted"} {
		code, out, text := n.run(nil, "import", "q", path, "--timeout", "1m")
		if code != fault.ExitUsage || !strings.HasPrefix(out, submitted) || n.waiting() != 999 ||
			!strings.Contains(text, `jobs[7] ("j7"): maxAttempts is -5: it has the queue's`) || !strings.Contains(text, `jobs[8] ("j8"): `) ||
			!strings.Contains(text, "1 of 1000 jobs of the file were left out") {
			t.Fatalf("code %d: %s%.2000s", code, out, text)
		}
	}
}

// TestNoQueues checks that an empty list prints a message for people.
func TestNoQueues(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"queues":[]}`) }))
	t.Cleanup(s.Close)
	n := &queueNode{t: t, url: s.URL}
	if code, out, talk := n.run(nil, "ls"); code != 0 || !strings.Contains(talk, "there are no queues yet: emitd queue declare NAME") {
		t.Errorf("%d %q %q", code, out, talk)
	}
	if code, out, _ := n.run(nil, "ls", "-o", "json"); code != 0 || strings.TrimSpace(out) != "[]" {
		t.Errorf("as JSON: %d %q", code, out)
	}
}

// TestBenchmarkInMilliseconds checks that durations are shown in milliseconds, and what is not known as such.
func TestBenchmarkInMilliseconds(t *testing.T) {
	t.Parallel()
	writes := 194.4
	all := []benchResult{
		{Clients: 2, Batch: 3, Jobs: 400, Seconds: 5, Rate: 80, Submit: durations{P50: 12.3, P99: 1500}, Writes: &writes},
		{Clients: 16, Failed: 7, Error: "lost"},
	}
	var out bytes.Buffer
	if err := benchTable(all)(&out, true); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12.3ms", "1500.0ms", " 194 ", " - ", "first error with 16 clients: lost"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in %s", want, out.String())
		}
	}
}

// TestBenchmark runs the benchmark in both protocols: at a rate, it makes exactly as many cycles as are due.
func TestBenchmark(t *testing.T) {
	t.Parallel()
	service := queuetest.New()
	h, err := api.New(service, api.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, under := httptest.NewServer(h), httptest.NewServer(http.StripPrefix("/some ops", h))
	defer s.Close()
	defer under.Close()
	own := ownCalls{service, queue.DefaultQueue}
	osqueue := newOsqueueCalls(client.Config{Addresses: []string{strings.TrimPrefix(s.URL, "http://")}}, service, 2)
	below := newOsqueueCalls(client.Config{Addresses: []string{under.URL + "/some%20ops/"}}, service, 2)
	plain := newOsqueueCalls(client.Config{Addresses: []string{under.URL + "/some ops"}}, service, 2)
	for _, c := range []struct {
		calls benchCalls
		batch int
	}{{own, 3}, {osqueue, 1}, {below, 1}, {plain, 1}} {
		b := benchmark{batch: c.batch, rate: 1000, length: 20 * time.Millisecond, payload: samePayload(1)}
		out, err := b.run(t.Context(), c.calls, 2)
		if err != nil || out.Jobs != int64(20*c.batch) || out.Failed != 0 || out.Total.Max == 0 || out.Writes != nil {
			t.Errorf("%T: %+v, %v", c.calls, out, err)
		}
	}
	s.Close()
	if out, err := (benchmark{batch: 1, rate: 1000, length: 2 * time.Millisecond, payload: samePayload(0)}).run(t.Context(), osqueue, 1); err != nil || out.Failed != 2 || out.Error == "" {
		t.Errorf("without a server: %+v, %v", out, err)
	}
}

// TestBenchmarkPayloads checks the length of payloads, and that random ones cannot be compressed together.
func TestBenchmarkPayloads(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 2, 3, 4, 4096} {
		for _, random := range []bool{false, true} {
			payload := samePayload(size)
			if random {
				payload = randomPayload(size)
			}
			one, other := payload(), payload()
			if len(one) != size || len(other) != size {
				t.Errorf("size %d, random %v: %d and %d bytes", size, random, len(one), len(other))
			}
			if size == 4096 && bytes.Equal(one, other) == random {
				t.Errorf("random %v: payloads are alike: %v", random, !random)
			}
		}
	}
}

// TestBenchmarkNeedsAServer checks that a benchmark of nothing is refused, and does not count failed calls instead.
func TestBenchmarkNeedsAServer(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	if code, _, err := n.run(nil, "bench", "nothing"); code == 0 || !strings.Contains(err, "E3102") {
		t.Errorf("a queue that does not exist: %d %s", code, err)
	}
	nowhere := &queueNode{t: t, url: "127.0.0.1:1"}
	for _, protocol := range []string{"own", "osqueue"} {
		code, _, err := nowhere.run(nil, "bench", "default", "--protocol", protocol, "--timeout", "1s", "--duration", "1ms")
		if code == 0 || !strings.Contains(err, "E3101") || !strings.Contains(err, "refused") {
			t.Errorf("%s, nothing listens: %d %s", protocol, code, err)
		}
	}
}

// TestBenchmarkRefusesFlags checks that flags which make no benchmark are refused.
func TestBenchmarkRefusesFlags(t *testing.T) {
	t.Parallel()
	n := newQueueNode(t)
	for _, args := range [][]string{
		{"--clients", "0"},
		{"--clients", "1,0"},
		{"--batch", "1001"},
		{"--rate", "-1"},
		{"--rate", "NaN"},
		{"--protocol", "amqp"},
		{"--protocol", "osqueue", "--batch", "2"},
		{"--duration", "0s"},
	} {
		if code, _, err := n.run(nil, append([]string{"bench", "default"}, args...)...); code != 2 {
			t.Errorf("%v: %d %s", args, code, err)
		}
	}
}
