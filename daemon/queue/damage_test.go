package queue

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/storage/blob/mem"
)

// TestDamagedJournal: a broker that finds an object of the journal damaged, gone, or written by a newer
// program serves nothing rather than less: callers are told to come back, nothing is deleted, and with
// the object as it was every acknowledged job is there.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	change := func(at int, value byte) func([]byte) []byte {
		return func(b []byte) []byte { b[at] = value; return b }
	}
	for name, damage := range map[string]struct {
		key   string // a part of it
		bytes func([]byte) []byte
		want  error
	}{
		"a flipped bit":             {"/log/", func(b []byte) []byte { b[len(b)-1] ^= 1; return b }, journal.ErrCorrupt},
		"cut off":                   {"/log/", func(b []byte) []byte { return b[:len(b)-3] }, journal.ErrCorrupt},
		"not a segment":             {"/log/", func([]byte) []byte { return []byte("<html>not found</html>") }, journal.ErrCorrupt},
		"empty":                     {"/log/", func([]byte) []byte { return nil }, journal.ErrCorrupt},
		"a newer format":            {"/log/", change(4, 99), journal.ErrNewer},
		"HEAD that is none":         {"/HEAD", func([]byte) []byte { return []byte("x") }, journal.ErrCorrupt},
		"the list of queues":        {"v1/queues", func([]byte) []byte { return []byte("{") }, nil},
		"a newer list of queues":    {"v1/queues", func(b []byte) []byte { return bytes.Replace(b, []byte(`"format": 1`), []byte(`"format": 9`), 1) }, nil},
		"a list with unknown names": {"v1/queues", func(b []byte) []byte { return bytes.Replace(b, []byte(`"default"`), []byte(`"../x"`), 1) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bucket := mem.New(mem.Config{})
			w := newWorld(t, bucket)
			w.declare(Settings{})
			n := w.node("n1")
			r := n.serve(DefaultQueue, 0)
			for _, j := range ids(3) {
				n.enqueue(j)
			}
			r.kill()
			keys := bucket.Keys()
			i := slices.IndexFunc(keys, func(k string) bool { return strings.Contains(k, damage.key) })
			if i < 0 {
				t.Fatalf("no %s in %q", damage.key, keys)
			}
			good, _ := bucket.Peek(keys[i])
			bad := damage.bytes(bytes.Clone(good))
			if bytes.Equal(bad, good) {
				t.Fatal("nothing was damaged")
			}
			if _, err := bucket.Write(w.ctx, keys[i], bad); err != nil {
				t.Fatal(err)
			}

			second := w.node("n2")
			refused := second.begin(DefaultQueue, 0)
			<-refused.done
			if refused.err == nil || damage.want != nil && !errors.Is(refused.err, damage.want) {
				t.Errorf("the broker ended with %v, want %v", refused.err, damage.want)
			}
			_, err := second.Enqueue(w.ctx, DefaultQueue, ids(1))
			if tag := TagOf(err); tag != QueueNotOwner && tag != Unavailable {
				t.Errorf("a call is answered %v", err)
			}
			for _, k := range keys {
				if _, ok := bucket.Peek(k); !ok {
					t.Errorf("%s was deleted", k)
				}
			}

			if _, err := bucket.Write(w.ctx, keys[i], good); err != nil {
				t.Fatal(err)
			}
			third := w.node("n3")
			third.serve(DefaultQueue, 0)
			if st := third.stat(); st.Waiting != 3 || st.Enqueued != 3 {
				t.Errorf("after the repair: %+v", st)
			}
		})
	}
}
