package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
)

// Network is a transport that loses requests and answers, for backends that speak HTTP.
type Network struct {
	// Base carries the requests that arrive; nil is http.DefaultTransport.
	Base http.RoundTripper

	mu     sync.Mutex
	script func(*http.Request) Fault
	met    map[Fault]int
	late   []*http.Request
	seen   []string
}

// Fault is what happens to one request.
type Fault int

// The faults.
const (
	None            Fault = iota
	LostRequest           // a reset before anything arrived
	LostReply             // a reset after it was carried out
	Late                  // a reset; the request arrives when DeliverLate is called
	Internal              // 500, not carried out
	InternalApplied       // 500, although carried out
	Unavailable           // 503, not carried out
	TooMany               // 429, not carried out
	Conflict              // 409, not carried out
	Refused               // 412, not carried out
	SentTwice             // carried out twice, the second answer comes back: a proxy that resends
	Torn                  // the answer's body ends in the middle
	Hang                  // no answer until the request's context ends; not carried out
	HangApplied           // the same, although carried out
)

var faultNames = [...]string{
	"none", "lost request", "lost reply", "late", "internal error", "internal error though carried out", "unavailable",
	"too many requests", "conflict", "refused", "sent twice", "torn", "hang", "hang though carried out",
}

// String names the fault.
func (t Fault) String() string { return faultNames[t] }

// errReset is the error of a broken connection.
var errReset = errors.New("connection reset by peer")

// Script sets what happens to each request from now on; nil is nothing.
func (n *Network) Script(script func(*http.Request) Fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.script = script
}

// Next is a script: the next requests of a method get these faults, in order, and later ones get
// none.
func (n *Network) Next(method string, faults ...Fault) {
	n.Script(func(r *http.Request) Fault {
		if r.Method != method || len(faults) == 0 {
			return None
		}
		fault := faults[0]
		faults = faults[1:]
		return fault
	})
}

// FaultCounts returns how often each fault has happened.
func (n *Network) FaultCounts() map[Fault]int {
	n.mu.Lock()
	defer n.mu.Unlock()
	met := map[Fault]int{}
	for fault, count := range n.met {
		met[fault] = count
	}
	return met
}

// Requests returns the methods of the requests so far, including lost ones, and forgets them.
func (n *Network) Requests() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := n.seen
	n.seen = nil
	return seen
}

// DeliverLate carries out the late requests, and returns how many there were.
func (n *Network) DeliverLate() int {
	n.mu.Lock()
	late := n.late
	n.late = nil
	n.mu.Unlock()
	for _, r := range late {
		if response, err := n.base().RoundTrip(r); err == nil {
			response.Body.Close()
		}
	}
	return len(late)
}

func (n *Network) base() http.RoundTripper {
	if n.Base != nil {
		return n.Base
	}
	return http.DefaultTransport
}

// RoundTrip implements http.RoundTripper.
func (n *Network) RoundTrip(r *http.Request) (*http.Response, error) {
	r, again, err := buffered(r)
	if err != nil {
		return nil, err
	}
	switch n.meet(r) {
	case LostRequest:
		return nil, errReset
	case LostReply:
		return n.dropped(r)
	case Late:
		n.mu.Lock()
		n.late = append(n.late, again())
		n.mu.Unlock()
		return nil, errReset
	case Internal:
		return answer(r, http.StatusInternalServerError), nil
	case InternalApplied:
		if _, err := n.dropped(r); !errors.Is(err, errReset) {
			return nil, err
		}
		return answer(r, http.StatusInternalServerError), nil
	case Unavailable:
		return answer(r, http.StatusServiceUnavailable), nil
	case TooMany:
		return answer(r, http.StatusTooManyRequests), nil
	case Conflict:
		return answer(r, http.StatusConflict), nil
	case Refused:
		return answer(r, http.StatusPreconditionFailed), nil
	case SentTwice:
		_, _ = n.dropped(again())
	case Torn:
		return n.torn(r)
	case HangApplied:
		_, _ = n.dropped(again())
		<-r.Context().Done()
		return nil, r.Context().Err()
	case Hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	case None:
	}
	return n.base().RoundTrip(r)
}

// meet calls the script, and counts.
func (n *Network) meet(r *http.Request) Fault {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seen = append(n.seen, r.Method)
	if n.script == nil {
		return None
	}
	fault := n.script(r)
	if n.met == nil {
		n.met = map[Fault]int{}
	}
	n.met[fault]++
	return fault
}

// dropped carries a request out and loses its answer.
func (n *Network) dropped(r *http.Request) (*http.Response, error) {
	response, err := n.base().RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body.Close()
	return nil, errReset
}

// torn carries a request out and loses the second half of the answer's body.
func (n *Network) torn(r *http.Request) (*http.Response, error) {
	response, err := n.base().RoundTrip(r)
	if err != nil {
		return nil, err
	}
	body, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		return nil, err
	}
	response.Body = io.NopCloser(io.MultiReader(bytes.NewReader(body[:len(body)/2]), cutReader{}))
	return response, nil
}

type cutReader struct{}

func (cutReader) Read([]byte) (int, error) { return 0, errReset }

// buffered makes a request that can be sent now. again makes copies of it that can be sent later,
// independent of its context.
func buffered(r *http.Request) (*http.Request, func() *http.Request, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, nil, err
		}
		r.Body.Close()
	}
	copied := func(ctx context.Context) *http.Request {
		c := r.Clone(ctx)
		if r.Body != nil {
			c.Body = io.NopCloser(bytes.NewReader(body))
			c.ContentLength = int64(len(body))
		}
		return c
	}
	return copied(r.Context()), func() *http.Request { return copied(context.WithoutCancel(r.Context())) }, nil
}

// answer makes an answer with this status and no useful body.
func answer(r *http.Request, status int) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: http.NoBody, Request: r,
	}
}
