package blob

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
)

func TestMain(m *testing.M) { Main(m) }

var kinds = []Kind{Versity, FakeGCS, Memory}

func TestConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := Start(t, kind)
			var n atomic.Int64
			t.Run("suite", func(t *testing.T) {
				blobtest.Run(t, blobtest.Config{Divide: 3, Open: func(t *testing.T) func() blob.Bucket {
					prefix := fmt.Sprintf("case%d", n.Add(1))
					return func() blob.Bucket { return s.Open(t, prefix) }
				}})
			})
		})
	}
}

// TestPortIsTaken checks that a server whose port is taken before it listens starts on another one, and
// that the process which has the port is not mistaken for it. A restarted server must get its own port.
func TestPortIsTaken(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			s := startOn(t, kind, l.Addr().String())
			if s.address == l.Addr().String() {
				t.Fatal("it is said to listen on a port that somebody else has")
			}
			if _, err := s.Open(t, "p").Create(t.Context(), "k", []byte("v")); err != nil {
				t.Error(err)
			}
			s.Kill()
			if l, err = net.Listen("tcp", s.address); err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := s.Run(); !errors.Is(err, errTaken) {
				t.Errorf("started again: error %v, want %v", err, errTaken)
			}
		})
	}
}

// TestKilled kills the server with kill -9 in the middle of storms and starts it again. The storms go on
// until it has died three times, however fast the machine is. No acknowledged write may be lost or doubled,
// and no refused write may be there. (fake-gcs-server and memory lose everything when they are killed; see
// TestFaultyNetwork.)
func TestKilled(t *testing.T) {
	t.Parallel()
	s := Start(t, Versity)
	done, ended := make(chan struct{}), make(chan struct{})
	var kills atomic.Int64
	go func() {
		defer close(ended)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				s.Kill()
				if err := s.Run(); err != nil {
					t.Error(err)
					return
				}
				kills.Add(1)
			}
		}
	}()
	for round := 0; kills.Load() < 3 && !t.Failed(); round++ {
		prefix := fmt.Sprintf("storm%d", round)
		storm := blobtest.StressConfig{Steps: 150, Timeout: 10 * time.Second, Verifier: s.Open(t, prefix)}
		for range 4 {
			storm.Buckets = append(storm.Buckets, s.Open(t, prefix))
		}
		chain, slots := blobtest.StressAppend(t, storm), blobtest.StressCreate(t, storm)
		t.Logf("round %d: %d kills; chain %+v, slots %+v", round, kills.Load(), chain, slots)
		if chain.Acknowledged == 0 || slots.Acknowledged == 0 {
			t.Error("no write was acknowledged: the round proves nothing")
		}
	}
	close(done)
	<-ended
}

// TestFaultyNetwork loses requests and answers on the way to real servers.
func TestFaultyNetwork(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := Start(t, kind)
			network := &blobtest.Network{}
			network.RandomFaults(1, 4, blobtest.LostRequest, blobtest.LostReply, blobtest.Late, blobtest.InternalApplied, blobtest.Unavailable, blobtest.Conflict)
			storm := blobtest.StressConfig{Steps: 80, Timeout: 10 * time.Second, Verifier: s.Open(t, "storm"), DeliverLate: func() { network.DeliverLate() }}
			for range 4 {
				storm.Buckets = append(storm.Buckets, s.OpenOver(t, "storm", &http.Client{Transport: network}))
			}
			chain, slots := blobtest.StressAppend(t, storm), blobtest.StressCreate(t, storm)
			t.Logf("%v; chain %+v, slots %+v", network.FaultCounts(), chain, slots)
			if chain.Acknowledged == 0 || slots.Acknowledged == 0 || network.FaultCounts()[blobtest.LostReply] < 20 {
				t.Errorf("too little has happened to prove anything")
			}
		})
	}
}

func TestWrongCredentials(t *testing.T) {
	t.Parallel()
	s := Start(t, Versity)
	b, err := s.openS3("denied", "not-"+secret, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, create := b.Create(t.Context(), "a", nil)
	_, read := b.Read(t.Context(), "a")
	for _, err := range []error{create, read, blob.Probe(t.Context(), b)} {
		if !errors.Is(err, blob.ErrDenied) || strings.Contains(err.Error(), secret) {
			t.Errorf("got %v, want ErrDenied without the secret", err)
		}
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		s := Start(t, kind)
		b := s.Open(t, "gone")
		s.Kill()
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		if _, err := b.Create(ctx, "a", nil); !errors.Is(err, blob.ErrUnavailable) || !blob.NotApplied(err) {
			t.Errorf("%s: got %v, want a certain ErrUnavailable", kind, err)
		}
	}
}
