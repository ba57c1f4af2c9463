package garbage

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
)

func TestPercent(t *testing.T) {
	t.Parallel()
	const mega = 1 << 20
	for _, c := range []struct {
		live, roots uint64
		want        int
	}{{0, 0, 100}, {8 * mega, 0, 100}, {384 * mega, 0, 100}, {760 * mega, 8 * mega, 50}, {1024 * mega, 0, 37}, {1 << 50, 0, 1}} {
		if got := percentOf(384*mega, c.live, c.roots); got != c.want {
			t.Errorf("%d live, %d roots: %d, want %d", c.live, c.roots, got, c.want)
		}
	}
}

// TestLimit: by how much the heap may grow follows the live objects, up to the limit.
func TestLimit(t *testing.T) {
	t.Setenv("GOGC", "") // not set
	defer debug.SetGCPercent(debug.SetGCPercent(goPercent))
	Limit(24 << 20)
	var live [][]byte
	for _, c := range []struct {
		live        int
		least, most uint64 // garbage in MiB
	}{{16, 14, 20}, {100, 20, 27}, {8, 6, 12}} {
		for len(live) < c.live {
			live = append(live, make([]byte, 1<<20))
		}
		clear(live[c.live:])
		live = live[:c.live]
		grow := uint64(0)
		for range 1000 { // finalizers run after the collection
			runtime.GC()
			runtime.Gosched()
			s := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}, {Name: "/gc/heap/live:bytes"}}
			metrics.Read(s)
			if grow = (s[0].Value.Uint64() - s[1].Value.Uint64()) >> 20; grow >= c.least && grow <= c.most {
				break
			}
		}
		if grow < c.least || grow > c.most {
			t.Errorf("with %d MiB in use the heap may grow by %d MiB, want %d to %d", c.live, grow, c.least, c.most)
		}
	}
	runtime.KeepAlive(live)
}
