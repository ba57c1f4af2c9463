package host

import (
	"context"
	"crypto/sha256"
	"net/http"
	"sync"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
)

// signOuts are the sessions whose owners have signed out. A session is valid on every node without being stored on any, so
// its end is noted on every node that can be reached, until the session would have ended anyway.
type signOuts struct {
	mu    sync.Mutex
	ended map[sessionKey]time.Time                         // until when the session would be valid
	calls map[sessionKey]map[*context.CancelCauseFunc]bool // under way
}

type sessionKey [sha256.Size]byte

// mostSignOuts bounds the memory: beyond it, the session that ends soonest is forgotten.
const mostSignOuts = 10_000

func keyOf(session string) sessionKey { return sha256.Sum256([]byte(session)) }

// end notes that a session has ended, and ends its calls.
func (s *signOuts) end(session string, until time.Time) {
	key, now := keyOf(session), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	soonest, at := sessionKey{}, time.Time{}
	for k, end := range s.ended {
		if now.After(end) {
			delete(s.ended, k)
		} else if at.IsZero() || end.Before(at) {
			soonest, at = k, end
		}
	}
	if len(s.ended) >= mostSignOuts {
		delete(s.ended, soonest)
	}
	if s.ended == nil {
		s.ended = map[sessionKey]time.Time{}
	}
	s.ended[key] = until
	for cancel := range s.calls[key] {
		(*cancel)(signedOut())
	}
}

func signedOut() *queue.Error { return queue.Refuse(queue.Unauthorized, "this session was signed out") }

// over reports whether a session has ended.
func (s *signOuts) over(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ended := s.ended[keyOf(session)]
	return ended
}

// call notes a call under a session, which ends with it. done must follow.
func (s *signOuts) call(session string, cancel context.CancelCauseFunc) (done func()) {
	key := keyOf(session)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ended := s.ended[key]; ended { // meanwhile
		cancel(signedOut())
	}
	if s.calls == nil {
		s.calls = map[sessionKey]map[*context.CancelCauseFunc]bool{}
	}
	if s.calls[key] == nil {
		s.calls[key] = map[*context.CancelCauseFunc]bool{}
	}
	s.calls[key][&cancel] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if delete(s.calls[key], &cancel); len(s.calls[key]) == 0 {
			delete(s.calls, key)
		}
	}
}

// sessions lets people sign in and out: for all nodes, as far as they can be reached.
type sessions struct {
	*guard
	h *host
}

// SignOut implements [admin.Sessions].
func (s sessions) SignOut(r *http.Request) *http.Cookie {
	text := sessionOf(r)
	if session, ok := access.ParseSession(text); ok && s.grants.Load().session(session) != nil {
		s.out.end(text, session.Until)
		if r.Header.Get(nodeapi.Forwarded) == "" {
			s.h.spreadSignOut(r.Context(), text)
		}
	}
	return s.guard.SignOut(r)
}

// sessionOf returns the session with which a call was made; empty if there is none.
func sessionOf(r *http.Request) string {
	if text, ok := bearerOf(r); ok {
		return text
	}
	return sessionCookie(r)
}

// signOutTimeout is how long a sign-out waits for other nodes.
const signOutTimeout = 2 * time.Second

// spreadSignOut ends a session at the other nodes. One that does not answer accepts the session until its end.
func (h *host) spreadSignOut(ctx context.Context, session string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), signOutTimeout) // the caller may be gone
	defer cancel()
	others, err := h.others(ctx)
	if err != nil {
		h.log.Warn("a session was signed out on this node only, because the other nodes are not known", "error", err)
		return
	}
	c := nodeapi.Caller{TLS: h.guard.peers(), Authorization: "Bearer " + session, Forwards: true}
	each(others, func(m node.Member) {
		if err := c.Delete(ctx, m.Address, sessionPath); err != nil {
			h.log.Warn("a session was signed out, but not on this node", "node", m.Name, "error", err)
		}
	})
}
