//go:build unix

package api_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/emitd/emitd/internal/plaincall"
	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/batch"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// fifo is a minimal queue, so that the benchmarks measure the transport.
type fifo struct {
	queue.Service
	mu      sync.Mutex
	waiting []*queue.Job
	head    int
	active  map[string]struct{}
	last    int
}

func (f *fifo) Enqueue(_ context.Context, _ string, jobs []queue.Job) ([]queue.Receipt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]queue.Receipt, len(jobs))
	for i := range jobs {
		f.last++
		jobs[i].ID = strconv.Itoa(f.last)
		f.waiting = append(f.waiting, &jobs[i])
		out[i] = queue.Receipt{ID: jobs[i].ID, State: queue.Waiting}
	}
	return out, nil
}

func (f *fifo) Claim(_ context.Context, name string, r queue.ClaimRequest) ([]queue.Claimed, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := min(max(r.Max, 1), len(f.waiting)-f.head)
	out := make([]queue.Claimed, n)
	for i := range out {
		j := f.waiting[f.head]
		f.waiting[f.head] = nil
		f.head++
		f.active[j.ID] = struct{}{}
		out[i] = queue.Claimed{
			Job:     queue.Info{ID: j.ID, Queue: name, Type: j.Type, State: queue.Active, Deliveries: 1, MaxAttempts: 3, Worker: r.Worker, Size: len(j.Payload)},
			Payload: j.Payload, Token: "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" + j.ID, For: osqueueLength,
		}
	}
	return out, nil
}

const osqueueLength = 30e9

func (f *fifo) Settle(_ context.Context, _ string, what []queue.Settlement) ([]queue.Outcome, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make([]queue.Outcome, len(what))
	for i := range what {
		out[i] = queue.Outcome{ID: what[i].ID, State: queue.Completed}
		if _, ok := f.active[what[i].ID]; !ok {
			out[i].Err = queue.Refuse(queue.StaleClaim, "stale")
		}
		delete(f.active, what[i].ID)
	}
	return out, nil
}

// raw is a connection with a minimal HTTP client, to leave the processor to the server.
type raw struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	body []byte
}

func (r *raw) call(b *testing.B, path, kind string, body []byte) []byte {
	r.out = append(r.out[:0], "POST "...)
	r.out = append(r.out, path...)
	r.out = append(r.out, " HTTP/1.1\r\nHost: x\r\nContent-Type: "...)
	r.out = append(r.out, kind...)
	r.out = append(r.out, "\r\nContent-Length: "...)
	r.out = strconv.AppendInt(r.out, int64(len(body)), 10)
	r.out = append(r.out, "\r\n\r\n"...)
	r.out = append(r.out, body...)
	if _, err := r.conn.Write(r.out); err != nil {
		b.Error(err)
		return nil
	}
	status, length := "", -1
	for {
		line, err := r.in.ReadSlice('\n')
		if err != nil {
			b.Error(err)
			return nil
		}
		if status == "" {
			status = string(line[9:12])
		}
		if len(line) > 16 && strings.EqualFold(string(line[:16]), "Content-Length: ") {
			length, _ = strconv.Atoi(string(bytes.TrimSpace(line[16:])))
		}
		if len(line) <= 2 {
			break
		}
	}
	r.body = r.body[:0]
	switch {
	case length >= 0:
		r.read(b, length)
	case status != "204":
		for size := -1; size != 0; { // chunked
			line, _ := r.in.ReadSlice('\n')
			n, _ := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
			size = int(n)
			r.read(b, size)
			_, _ = r.in.Discard(2)
		}
	}
	if status[0] != '2' {
		b.Errorf("%s: %s %s", path, status, r.body)
		return nil
	}
	return r.body
}

// read appends n bytes to the body.
func (r *raw) read(b *testing.B, n int) {
	have := len(r.body)
	r.body = slices.Grow(r.body, n)[:have+n]
	if _, err := io.ReadFull(r.in, r.body[have:]); err != nil {
		b.Error(err)
	}
}

// cycles runs b.N jobs over n connections, with batch jobs per cycle, and reports jobs per second.
func cycles(b *testing.B, n, batch int, cycle func(b *testing.B, r *raw)) {
	b.Run("fifo", func(b *testing.B) { cyclesOn(b, &fifo{active: map[string]struct{}{}}, n, batch, cycle) })
	b.Run("broker", func(b *testing.B) { cyclesOn(b, startBroker(b, mem.Config{}), n, batch, cycle) })
}

// cyclesOn returns how long the cycles took, sorted.
func cyclesOn(b *testing.B, svc queue.Service, n, batch int, cycle func(b *testing.B, r *raw)) []time.Duration {
	h, err := api.New(svc, api.Options{})
	if err != nil {
		b.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Config.Protocols = api.Protocols()
	s.Listener = plaincall.Listen(s.Listener, plaincall.Config{ // as the program does
		Handler: h, Path: func(path string) bool { return strings.HasPrefix(path, "/v1/") }, HeaderTimeout: time.Minute, IdleTimeout: time.Minute,
	})
	s.Start()
	defer s.Close()
	var left atomic.Int64
	left.Store(int64(b.N))
	var all sync.WaitGroup
	took := make([][]time.Duration, n)
	before := testproc.ProcessTime()
	b.ResetTimer()
	for i := range n {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		r := &raw{conn: conn, in: bufio.NewReaderSize(conn, 64<<10)}
		all.Go(func() {
			for left.Add(int64(-batch)) > int64(-batch) && !b.Failed() {
				begun := time.Now()
				cycle(b, r)
				took[i] = append(took[i], time.Since(begun))
			}
		})
	}
	all.Wait()
	b.StopTimer()
	// If other programs use the machine, the processor time (server and client) says more.
	b.ReportMetric(float64((testproc.ProcessTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/job")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
	return slices.Sorted(slices.Values(slices.Concat(took...)))
}

// clients is the number of connections for single calls.
const clients = 128

// BenchmarkFar is BenchmarkSingle and BenchmarkOsqueue with a storage latency of 50 ms. A cycle of
// the own API waits for it twice; one of osqueue's, whose claims are stored, three times.
func BenchmarkFar(b *testing.B) {
	for _, by := range []struct {
		name  string
		cycle func(b *testing.B, r *raw)
	}{{"own", single("/v1/queues/q")}, {"osqueue", osqueue}} {
		b.Run(by.name, func(b *testing.B) {
			took := cyclesOn(b, startBroker(b, mem.Config{Latency: mem.Constant(50 * time.Millisecond)}), clients, 1, by.cycle)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
		})
	}
}

var hundred = []byte(`"` + strings.Repeat("x", 98) + `"`)

// BenchmarkSingle submits, claims and completes one job per call.
func BenchmarkSingle(b *testing.B) { cycles(b, clients, 1, single("/v1/queues/q")) }

// single is the cycle of one job on the queue at this path.
func single(path string) func(b *testing.B, r *raw) {
	submit := fmt.Appendf(nil, `{"type":"t","payload":%s}`, hundred)
	return func(b *testing.B, r *raw) {
		r.call(b, path+"/jobs", "application/json", submit)
		got := r.call(b, path+"/claim", "application/json", []byte(`{"worker":"w"}`))
		id, token := between(got, `"id":"`), between(got, `"token":"`)
		r.call(b, path+"/jobs/"+id+"/complete", "application/json", fmt.Appendf(nil, `{"token":%q}`, token))
	}
}

// BenchmarkOsqueue does the same with osqueue's REST API.
func BenchmarkOsqueue(b *testing.B) { cycles(b, clients, 1, osqueue) }

// osqueue is the cycle of one job as osqueue's clients run it, without a token.
func osqueue(b *testing.B, r *raw) {
	r.call(b, "/v1/jobs", "application/json", fmt.Appendf(nil, `{"type":"t","payload":%s}`, hundred))
	got := r.call(b, "/v1/jobs/claim", "application/json", []byte(`{"workerId":"w"}`))
	r.call(b, "/v1/jobs/"+between(got, `"jobId":"`)+"/complete", "application/json", []byte(`{"workerId":"w"}`))
}

func between(b []byte, begin string) string {
	_, rest, _ := bytes.Cut(b, []byte(begin))
	out, _, _ := bytes.Cut(rest, []byte(`"`))
	return string(out)
}

// BenchmarkJSON100 sends a hundred jobs per call as JSON.
func BenchmarkJSON100(b *testing.B) {
	jobs := make([]queue.Job, 100)
	for i := range jobs {
		jobs[i] = queue.Job{Type: "t", Payload: hundred}
	}
	submit := wire.AppendEnqueue(nil, jobs)
	cycles(b, 8, 100, func(b *testing.B, r *raw) {
		r.call(b, "/v1/queues/q/jobs", "application/json", submit)
		var got struct {
			Jobs []struct {
				ID    string `json:"id"`
				Token string `json:"token"`
			} `json:"jobs"`
		}
		if err := json.Unmarshal(r.call(b, "/v1/queues/q/claim", "application/json", []byte(`{"max":100}`)), &got); err != nil {
			b.Error(err)
		}
		done := make([]queue.Settlement, len(got.Jobs))
		for i, j := range got.Jobs {
			done[i] = queue.Settlement{Verb: queue.Complete, ID: j.ID, Token: j.Token}
		}
		r.call(b, "/v1/queues/q/settle", "application/json", wire.AppendSettle(nil, done))
	})
}

// BenchmarkProtobuf100 sends a hundred jobs per call as protobuf.
func BenchmarkProtobuf100(b *testing.B) {
	jobs := make([]queue.Job, 100)
	for i := range jobs {
		jobs[i] = queue.Job{Type: "t", Payload: hundred}
	}
	const kind, service = "application/proto", "/emitd.queue.v1.QueueService/"
	submit, _ := proto.Marshal(batch.EnqueueRequest("q", jobs))
	claim, _ := proto.Marshal(&queuev1.ClaimRequest{Queue: "q", Max: 100})
	cycles(b, 8, 100, func(b *testing.B, r *raw) {
		r.call(b, service+"Enqueue", kind, submit)
		var got queuev1.ClaimResponse
		if err := proto.Unmarshal(r.call(b, service+"Claim", kind, claim), &got); err != nil {
			b.Error(err)
		}
		done := make([]queue.Settlement, len(got.Jobs))
		for i, j := range got.Jobs {
			done[i] = queue.Settlement{Verb: queue.Complete, ID: j.Id, Token: j.Token}
		}
		out, _ := proto.Marshal(batch.SettleRequest("q", done))
		r.call(b, service+"Settle", kind, out)
	})
}

var _ http.Handler = (*api.Handler)(nil)
