package ledger

import (
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/emitd/emitd/internal/testproc"
)

// BenchmarkJob measures what a broker calls in the ledger for one job: it is submitted, claimed and
// completed, in calls of 100 jobs, of which some are in flight at a time. waiting is the number of
// other waiting jobs, of another type. The deduplication window is full.
func BenchmarkJob(b *testing.B) {
	for _, waiting := range []int{0, 10_000, 1_000_000} {
		b.Run(fmt.Sprintf("waiting=%d", waiting), func(b *testing.B) {
			l := New(Config{DedupIDs: 300_000})
			ids := make([]string, 1<<16)
			for i := range ids {
				ids[i] = uuid.NewString()
			}
			c := cycler{l: l, payload: make([]byte, 100)}
			for range waiting {
				c.enqueue(b, uuid.NewString(), "waiting")
			}
			const inFlight, size = 500, 100
			call := make([]string, size)
			used := testproc.ProcessTime()
			for b.Loop() {
				// flight calls submit, then claim, then complete
				c.phase(b, inFlight, func() {
					for i := range call {
						call[i] = uuid.NewString()
					}
					for _, id := range call {
						c.enqueue(b, id, "busy")
					}
				})
				c.phase(b, inFlight, func() { c.claim(b, size) })
				c.phase(b, inFlight, func() { c.complete(b, size) })
			}
			b.ReportMetric(float64(testproc.ProcessTime()-used)/float64(b.N)/inFlight/size, "cpu-ns/job")
			b.ReportMetric(0, "ns/op")
		})
	}
}

type cycler struct {
	l       *Ledger
	now     int64
	payload []byte
	claimed []Job
}

func (c *cycler) phase(b *testing.B, n int, f func()) {
	c.now += 60
	for range n {
		f()
	}
}

func (c *cycler) apply(b *testing.B, r *Record) {
	r.At = c.now
	if err := c.l.Apply(r, c.now); err != nil {
		b.Fatal(err)
	}
}

func (c *cycler) enqueue(b *testing.B, id, typ string) {
	if s, _ := c.l.Lookup(Pack(id)); s != None {
		b.Fatal(id)
	}
	c.apply(b, &Record{Kind: Enqueue, Numbers: []uint64{c.l.NextNumber()}, ID: id, Type: typ, Payload: c.payload})
}

func (c *cycler) claim(b *testing.B, most int) {
	r := Record{Kind: Claim, Epoch: 1, Nonce: 1, Until: c.now + 30_000, Visibility: 30_000, Worker: "w"}
	for range most {
		n, ok := c.l.Best([]string{"busy"})
		if !ok {
			b.Fatal("none")
		}
		if c.l.Size(n) > 1000 {
			b.Fatal("large")
		}
		j, _ := c.l.Job(n)
		r.Numbers, r.Deliveries = append(r.Numbers[:0], n), append(r.Deliveries[:0], uint64(j.Deliveries)+1)
		c.apply(b, &r)
		c.claimed = append(c.claimed, j)
	}
}

func (c *cycler) complete(b *testing.B, most int) {
	for _, j := range c.claimed[:most] {
		if g, ok := c.l.JobWithoutPayload(j.Number); !ok || g.State != Active {
			b.Fatalf("%+v", g)
		}
		if err := c.l.Hold(j.Number); err != nil {
			b.Fatal(err)
		}
	}
	for _, j := range c.claimed[:most] {
		c.apply(b, &Record{Kind: Complete, Numbers: []uint64{j.Number}})
	}
	if c.claimed = c.claimed[most:]; len(c.claimed) == 0 {
		c.claimed = nil
	}
}
