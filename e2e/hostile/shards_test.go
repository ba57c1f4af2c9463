package hostile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/emitd/emitd/e2e/drill"
)

// shards declares six queues of 256 shards at once, and submits jobs to each of their shards. The names
// are the same in each round, because a queue that was refused may be accepted later.
func (a *attacks) shards(ctx context.Context) {
	var all sync.WaitGroup
	for n := range 6 {
		all.Go(func() {
			name := fmt.Sprintf("wide-%d", n)
			a.declare(ctx, "shards", name, 256)
			a.sendAs(ctx, "shards", http.MethodPost, "/v1/queues/"+name+"/jobs", strings.NewReader(thousandJobs), "Content-Type", "application/json")
		})
	}
	all.Wait()
}

// thousandJobs has the same IDs each time, so that a queue stores them once. They are spread over its
// shards.
var thousandJobs = func() string {
	jobs := make([]string, 1000)
	for i := range jobs {
		jobs[i] = fmt.Sprintf(`{"id":"same-%d","type":"hostile","payload":%q}`, i, strings.Repeat("x", 100))
	}
	return `{"jobs":[` + strings.Join(jobs, ",") + `]}`
}()

// queues declares queues with random names and any number of shards, and removes some of them at once.
func (a *attacks) queues(ctx context.Context) {
	const attack = "queues without end"
	for range 20 {
		name := fmt.Sprintf("q-%d", rand.Uint64())
		a.declare(ctx, attack, name, 1<<rand.IntN(9))
		if rand.IntN(2) == 0 {
			a.sendAs(ctx, attack, http.MethodDelete, "/v1/queues/"+name, nil)
		}
	}
}

func (a *attacks) declare(ctx context.Context, attack, name string, shards int) {
	a.sendAs(ctx, attack, http.MethodPut, "/v1/queues/"+name, strings.NewReader(fmt.Sprintf(`{"shards":%d}`, shards)), "Content-Type", "application/json")
}

// TestDrillShards runs clients that declare queues with as many shards as they can, one after the other.
// A node of 256 MiB must survive and serve honest clients meanwhile.
func TestDrillShards(t *testing.T) {
	n := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { n.watch(ctx) })
	n.ready(ctx)
	h := newHonest(n)
	attacks := newAttacks(n)
	hostile, peace := context.WithCancel(ctx)
	for name, attack := range map[string]func(context.Context){"shards": attacks.shards, "queues without end": attacks.queues} {
		all.Go(func() { attacks.repeat(hostile, name, attack) })
	}
	submitting, enough := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { h.submit(submitting, ctx, 0) })
	all.Go(func() { h.work(ctx, 0) })
	wait(ctx, duration(t))
	enough()
	work.Wait()
	h.drained(ctx, t)
	peace()
	n.report(h, attacks)
	what := fmt.Sprintf("256 MiB, queues of 256 shards declared for %v", duration(t))
	drill.Never(t, what+", restarts", int(n.restarts.Load()))
	drill.Never(t, what+", honest calls that failed after their repetitions", h.failures())
	drill.Amount(t, what+", resident at most", float64(n.resident.Load()>>20), "MiB", 0)
	cancel()
	all.Wait()
}
