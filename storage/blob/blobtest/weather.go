package blobtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// weather are the default faults of RandomFaults: all that end by themselves.
var weather = []Fault{LostRequest, LostReply, Late, Internal, InternalApplied, Unavailable, Conflict, Torn, TooMany}

// doubtful are the faults after which the outcome of a write is unknown.
var doubtful = []Fault{LostRequest, LostReply, Late, Internal, InternalApplied, Unavailable}

// RandomFaults is a script: one of `of` requests gets a fault. The seed chooses it from the given ones,
// or by default from all that end by themselves.
func (n *Network) RandomFaults(seed uint64, of int, faults ...Fault) {
	if len(faults) == 0 {
		faults = weather
	}
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(seed, 71))
	n.Script(func(*http.Request) Fault {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(of) > 0 {
			return None
		}
		return faults[rng.IntN(len(faults))]
	})
}

// StressWithFaults runs StressAppend and StressCreate over a network that disturbs one request of three, with six clients
// that open makes. verifier reaches the store without disturbance. Of hundreds of writes with unknown
// outcome none happens twice and none is lost.
func StressWithFaults(t *testing.T, net *Network, verifier blob.Bucket, open func() blob.Bucket) {
	t.Helper()
	net.RandomFaults(2, 3)
	s := StressConfig{Steps: 80, Verifier: verifier, DeliverLate: func() { net.DeliverLate() }, Timeout: 10 * time.Second}
	for range 6 {
		s.Buckets = append(s.Buckets, open())
	}
	chain, slots := StressAppend(t, s), StressCreate(t, s)
	met, doubts := net.FaultCounts(), 0
	for _, fault := range doubtful {
		doubts += met[fault]
	}
	t.Logf("%d doubtful requests; chain %+v, slots %+v", doubts, chain, slots)
	if doubts < 500 || chain.Acknowledged == 0 || slots.Acknowledged == 0 {
		t.Errorf("too little has happened to prove anything")
	}
}

// NoAnswer gives one fault to every request of the method with which a backend writes, and lets
// its reads fail, until the caller's time ends. The backend must not claim to know the outcome. The
// map says for each fault whether it is certain that nothing has happened.
func NoAnswer(t *testing.T, method string, faults map[Fault]bool, open func(t *testing.T) (*Network, blob.Bucket)) {
	for fault, certain := range faults {
		t.Run(fmt.Sprint(fault), func(t *testing.T) {
			t.Parallel()
			net, b := open(t)
			net.Script(func(r *http.Request) Fault {
				if r.Method == method {
					return fault
				}
				return Unavailable
			})
			err := createInVain(t, b)
			// A request in flight when the time ends has an unknown outcome, whatever its fault.
			// On a busy machine that may happen a few times, but not always.
			for tries := 0; certain && tries < 20 && errors.Is(err, blob.ErrUnknownOutcome); tries++ {
				err = createInVain(t, b)
			}
			if err == nil || blob.NotApplied(err) != certain || errors.Is(err, blob.ErrUnknownOutcome) == certain {
				t.Fatalf("got %v (certain %v), want certain %v", err, blob.NotApplied(err), certain)
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want the context's end in it", err)
			}
		})
	}
}

// createInVain creates an object, which fails, for as long as a caller may wait.
func createInVain(t *testing.T, b blob.Bucket) error {
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	_, err := b.Create(ctx, "a", []byte("one"))
	return err
}
