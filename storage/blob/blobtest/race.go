package blobtest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/emitd/emitd/storage/blob"
)

// races are the cases in which many callers use the same key. Each caller has a handle of its own.
var races = map[string]func(*world){
	"one of many creators":           oneCreator,
	"one of many replacers":          oneReplacer,
	"a counter loses no increment":   counter,
	"readers never see a torn write": tornRead,
	"create against delete":          createAgainstDelete,
	"chain":                          func(w *world) { StressAppend(w.T, w.storm(4, 40)) },
	"slots":                          func(w *world) { StressCreate(w.T, w.storm(6, 40)) },
}

func (w *world) storm(writers, steps int) StressConfig {
	s := StressConfig{Steps: w.config.many(steps)}
	for range writers {
		s.Buckets = append(s.Buckets, w.another())
	}
	return s
}

// parallel runs n functions at once, each with a handle of its own.
func (w *world) parallel(n int, do func(i int, b blob.Bucket)) {
	var all sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		b := w.another()
		all.Go(func() {
			<-start
			do(i, b)
		})
	}
	close(start)
	all.Wait()
}

func oneCreator(w *world) {
	for round := range w.config.many(20) {
		key := fmt.Sprintf("log/%020d", round)
		var won atomic.Int64
		winner := make([]bool, 16)
		w.parallel(16, func(i int, b blob.Bucket) {
			_, err := b.Create(w.ctx, key, fmt.Appendf(nil, "creator %d", i))
			switch {
			case err == nil:
				winner[i] = true
				won.Add(1)
			case !errors.Is(err, blob.ErrExists):
				w.Errorf("create: got %v, want ErrExists", err)
			}
		})
		if won.Load() != 1 {
			w.Fatalf("%d of 16 creators of %s won", won.Load(), key)
		}
		for i, won := range winner {
			if won {
				w.want(key, fmt.Sprintf("creator %d", i))
			}
		}
	}
}

func oneReplacer(w *world) {
	v := w.create("HEAD", "begin")
	for round := range w.config.many(20) {
		var mu sync.Mutex
		won, next := 0, blob.Version("")
		w.parallel(8, func(i int, b blob.Bucket) {
			got, err := b.Replace(w.ctx, "HEAD", fmt.Appendf(nil, "round %d by %d", round, i), v)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won, next = won+1, got
			} else if !errors.Is(err, blob.ErrChanged) {
				w.Errorf("replace: got %v, want ErrChanged", err)
			}
		})
		if won != 1 {
			w.Fatalf("%d of 8 replacers of one version won in round %d", won, round)
		}
		v = next
	}
}

// counter is the classic test of compare-and-swap.
func counter(w *world) {
	w.create("counter", "0")
	const writers = 8
	steps := w.config.many(25)
	w.parallel(writers, func(_ int, b blob.Bucket) {
		for done := 0; done < steps; {
			o, err := b.Read(w.ctx, "counter")
			if err != nil {
				w.Errorf("read: %v", err)
				return
			}
			n, err := strconv.Atoi(string(o.Data))
			if err != nil {
				w.Errorf("read %q: %v", o.Data, err)
				return
			}
			_, err = b.Replace(w.ctx, "counter", fmt.Append(nil, n+1), o.Version)
			if err == nil {
				done++
			} else if !errors.Is(err, blob.ErrChanged) || !blob.NotApplied(err) {
				w.Errorf("replace: got %v, want a certain ErrChanged", err)
				return
			}
		}
	})
	w.want("counter", fmt.Sprint(writers*steps))
}

func tornRead(w *world) {
	fill := func(c byte) []byte {
		data := make([]byte, 64<<10)
		for i := range data {
			data[i] = c
		}
		return data
	}
	if _, err := w.Write(w.ctx, "in/n/1", fill('a')); err != nil {
		w.Fatal(err)
	}
	var writing atomic.Bool
	writing.Store(true)
	w.parallel(3, func(i int, b blob.Bucket) {
		if i == 0 {
			defer writing.Store(false)
			for n := range w.config.many(40) {
				if _, err := b.Write(w.ctx, "in/n/1", fill('a'+byte(n%26))); err != nil {
					w.Errorf("write: %v", err)
				}
			}
			return
		}
		for writing.Load() {
			o, err := b.Read(w.ctx, "in/n/1")
			if err != nil {
				w.Errorf("read: %v", err)
				return
			}
			if len(o.Data) != 64<<10 || o.Data[0] != o.Data[len(o.Data)-1] {
				w.Errorf("read %d bytes from %c to %c", len(o.Data), o.Data[0], o.Data[len(o.Data)-1])
				return
			}
		}
	})
}

// createAgainstDelete repeats what is most difficult for a file system: names and their directories
// that appear and disappear.
func createAgainstDelete(w *world) {
	w.parallel(4, func(i int, b blob.Bucket) {
		for n := range w.config.many(30) {
			if i%2 == 0 {
				if err := b.Delete(w.ctx, "deep/er/key"); err != nil {
					w.Errorf("delete: %v", err)
				}
				continue
			}
			v, err := b.Create(w.ctx, "deep/er/key", fmt.Appendf(nil, "%d.%d", i, n))
			if err == nil {
				_, err = b.Replace(w.ctx, "deep/er/key", fmt.Appendf(nil, "%d.%d again", i, n), v)
			}
			if err != nil && !errors.Is(err, blob.ErrExists) && !errors.Is(err, blob.ErrChanged) {
				w.Errorf("got %v, want ErrExists or ErrChanged", err)
			}
		}
	})
	if err := w.Delete(w.ctx, "deep/er/key"); err != nil {
		w.Fatal(err)
	}
	w.create("deep/er/key", "end")
	w.want("deep/er/key", "end")
}
