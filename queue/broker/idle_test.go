package broker

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestIdleCosts: an empty claim makes no request. Idle shards together make only the requests that
// are needed to learn of changed settings; none of them is a write. The page on what a queue
// promises has the figure.
func TestIdleCosts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{Shards: 3})
		n := w.node("n1")
		for shard := range 3 {
			n.serve(queue.DefaultQueue, shard)
		}
		time.Sleep(time.Second) // it looks for unneeded payloads
		before := bucket.Stats()
		for range 100 {
			if c := n.claim(queue.ClaimRequest{}); len(c) != 0 {
				t.Fatalf("%+v", c)
			}
		}
		if got := added(before, bucket.Stats()); len(got) != 0 {
			t.Errorf("100 empty claims made the requests %v", got)
		}
		time.Sleep(time.Hour)
		const reads = int64(time.Hour / followEvery)
		if got := added(before, bucket.Stats()); len(got) != 1 || got[mem.ReadNewer] != reads {
			t.Errorf("an idle hour made the requests %v, want %d reads", got, reads)
		}
		page, err := os.ReadFile("../../docs/explanation/queue.md")
		if err != nil {
			t.Fatal(err)
		}
		if figure := fmt.Sprintf("at most %d an hour", reads); !strings.Contains(string(page), figure) {
			t.Errorf("the page does not say %q", figure)
		}
	})
}

// added returns how many requests of each kind were made between two counts.
func added(before, after map[mem.Op]mem.Stats) map[mem.Op]int64 {
	out := map[mem.Op]int64{}
	for op, s := range after {
		if n := s.Calls - before[op].Calls; n != 0 {
			out[op] = n
		}
	}
	return out
}
