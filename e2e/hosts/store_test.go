package hosts

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// remoteStore puts the latency and the limit of a remote object store in front of a server in memory, and counts requests.
// A request is answered latency after it has arrived as a whole. All clients together may make perSecond requests a second,
// and those of one second at once; a further one is told to slow down, as S3 does.
type remoteStore struct {
	server    http.Handler
	latency   time.Duration
	perSecond int

	mu       sync.Mutex
	due      time.Time      // when the requests so far would have come, had they come evenly
	requests map[string]int // by kind
}

// The kinds of requests, by price: S3 bills writes and lists alike, reads cheaper, and deletions not at all.
const (
	billedWrite = "write"
	billedRead  = "read"
	notBilled   = "delete"
	refused     = "refused request"
)

func kindOf(r *http.Request) string {
	switch {
	case r.Method == http.MethodDelete:
		return notBilled
	case r.Method == http.MethodPut || r.URL.Query().Has("list-type"):
		return billedWrite
	}
	return billedRead
}

// ServeHTTP implements http.Handler.
func (s *remoteStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	admitted := s.admit(kindOf(r))
	<-time.After(s.latency)
	if !admitted {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
		return
	}
	s.server.ServeHTTP(w, r)
}

// admit counts a request, and reports whether it may be made now.
func (s *remoteStore) admit(kind string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.due.Before(now) {
		s.due = now
	}
	each := time.Second / time.Duration(s.perSecond)
	if s.due.Sub(now)+each > time.Second {
		s.requests[refused]++
		return false
	}
	s.requests[kind]++
	s.due = s.due.Add(each)
	return true
}

// counts returns the requests until now, by kind.
func (s *remoteStore) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

func newRemoteStore(server http.Handler, perSecond int) *remoteStore {
	return &remoteStore{server: server, latency: 20 * time.Millisecond, perSecond: perSecond, requests: map[string]int{}}
}

// TestRemoteStore checks the latency and the limit, and that requests are counted by price.
func TestRemoteStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newRemoteStore(http.NotFoundHandler(), 4)
		query := func(method, path string) int {
			r, err := http.NewRequestWithContext(t.Context(), method, path, bytes.NewReader([]byte("body")))
			if err != nil {
				t.Fatal(err)
			}
			began, answer := time.Now(), httptest.NewRecorder()
			s.ServeHTTP(answer, r)
			if took := time.Since(began); took != s.latency {
				t.Errorf("%s %s took %v", method, path, took)
			}
			return answer.Code
		}
		for i, q := range []struct{ method, path string }{{"PUT", "/b/k"}, {"GET", "/b/k"}, {"GET", "/b?list-type=2"}, {"DELETE", "/b/k"}, {"PUT", "/b/k"}} {
			if code := query(q.method, q.path); (code == http.StatusServiceUnavailable) != (i == 4) {
				t.Errorf("request %d: status %d", i, code)
			}
		}
		if n := s.counts(); n[billedWrite] != 2 || n[billedRead] != 1 || n[notBilled] != 1 || n[refused] != 1 {
			t.Errorf("counted %v", n)
		}
		<-time.After(250 * time.Millisecond) // of the bubble
		if code := query("PUT", "/b/k"); code == http.StatusServiceUnavailable {
			t.Error("refused although the limit allows another one by now")
		}
	})
}
