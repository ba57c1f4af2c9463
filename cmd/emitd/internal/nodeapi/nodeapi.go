// Package nodeapi is how a node is asked for what only it knows, such as the output of its commands. The calls are for
// the nodes and the command line of one version; they are not a public interface.
//
// A refusal is a problem (RFC 9457) with the code and the advice of a fault, so the caller reports the same fault as if
// the node had been the caller's own process.
package nodeapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
)

// Prefix is the beginning of the paths of all calls.
const Prefix = "/node/v1/"

// The paths of the calls.
const (
	Output = Prefix + "output" // of commands: a runlog.Page
	Debug  = Prefix + "debug"  // of the process, for a debug bundle: a Process
	Trends = Prefix + "trends" // what the process has measured: a trend.Page
)

// Process is what a process says about itself.
type Process struct {
	Version    string           `json:"version"`
	Go         string           `json:"go"`
	Platform   string           `json:"platform"`
	Processors int              `json:"processors"`
	Cluster    string           `json:"cluster"`
	Nodes      []string         `json:"nodes"`
	Settings   []config.Setting `json:"settings"`   // without secrets
	Goroutines string           `json:"goroutines"` // their stacks, and how many have each
}

// Forwarded is a header of calls that another node has forwarded. The receiver answers them itself.
const Forwarded = "Emitd-Forwarded"

// mostAnswer bounds an answer in bytes.
const mostAnswer = 64 << 20

// dialTimeout bounds how long a connection and its TLS handshake may take each, because the address of a lost host
// does not answer at all.
const dialTimeout = 3 * time.Second

// Refuse answers a call with a fault.
func Refuse(w http.ResponseWriter, f *fault.Fault) {
	p := f.Problem(0)
	w.Header().Set("Content-Type", fault.ProblemType)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p)
}

// Caller calls nodes.
type Caller struct {
	TLS           *tls.Config // nil: no TLS
	Authorization string      // value of the header; empty: none
	Forwards      bool        // the calls are those of somebody else
}

// Get returns the answer of a node at an address: host:port, or a URL with a path if emitd is served below one. Its
// errors are faults. [fault.NodeUnreachable] means that the node has not answered, or is of a version without this call.
func (c Caller) Get(ctx context.Context, addr, path string, query url.Values) ([]byte, error) {
	return c.call(ctx, http.MethodGet, addr, path+"?"+query.Encode())
}

// Delete makes a call that ends something. Its errors are those of Get.
func (c Caller) Delete(ctx context.Context, addr, path string) error {
	_, err := c.call(ctx, http.MethodDelete, addr, path)
	return err
}

func (c Caller) call(ctx context.Context, method, addr, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base(addr)+path, nil)
	if err != nil {
		return nil, fault.New(fault.Usage, "%q is not the address of a node", addr)
	}
	if c.Authorization != "" {
		r.Header.Set("Authorization", c.Authorization)
	}
	if c.Forwards {
		r.Header.Set(Forwarded, "1")
	}
	transport := &http.Transport{
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, TLSHandshakeTimeout: dialTimeout,
		TLSClientConfig: c.TLS, DisableKeepAlives: true, ForceAttemptHTTP2: true,
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return nil, fault.New(fault.NodeUnreachable, "the node at %s does not answer: %w", addr, cause(err))
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, mostAnswer))
	if err != nil {
		return nil, fault.New(fault.NodeUnreachable, "the answer of the node at %s broke off: %w", addr, cause(err))
	}
	if answer.StatusCode == http.StatusOK {
		return body, nil
	}
	return nil, refusal(addr, answer, body)
}

// base returns the URL of a node.
func (c Caller) base(addr string) string {
	switch {
	case strings.Contains(addr, "://"):
		return strings.TrimSuffix(addr, "/")
	case c.TLS != nil:
		return "https://" + addr
	}
	return "http://" + addr
}

// cause unwraps a net.OpError, whose text would repeat the address.
func cause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return op.Err
	}
	return err
}

// refusal returns the fault of an answer.
func refusal(addr string, answer *http.Response, body []byte) error {
	var p fault.Problem
	if answer.Header.Get("Content-Type") == fault.ProblemType && json.Unmarshal(body, &p) == nil {
		if _, ok := fault.Lookup(p.Code); ok {
			return &fault.Fault{Code: p.Code, What: p.Detail, Why: p.Why, Do: p.Hint}
		}
	}
	text, _, _ := strings.Cut(strings.TrimSpace(string(body)), "\n")
	text = fmt.Sprintf("%.200s", text)
	switch answer.StatusCode {
	case http.StatusUnauthorized:
		return fault.New(fault.NotAllowed, "the node at %s: %s", addr, text)
	case http.StatusNotFound:
		return fault.New(fault.NodeUnreachable, "the node at %s does not know this call", addr).
			Hint("its version may be older than that of this program: see emitd node ls and emitd version")
	}
	return fault.New(fault.NodeUnreachable, "the node at %s answers %d: %s", addr, answer.StatusCode, text)
}
