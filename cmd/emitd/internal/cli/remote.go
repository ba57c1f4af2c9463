package cli

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/host"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// nodeFlags name a node whose admin API is asked instead of the store.
type nodeFlags struct {
	address, token string
	tls            bool
}

// addrFlags adds the flags of a command that a node can carry out.
func (a *app) addrFlags(cmd *cobra.Command) *cobra.Command {
	fl := cmd.Flags()
	fl.StringVar(&a.node.address, "addr", "", "ask the node at this host:port or URL instead of the store")
	fl.StringVar(&a.node.token, "token-file", "", "file with the bearer token of the node's API")
	fl.BoolVar(&a.node.tls, "tls", false, "call the node with TLS; implied if api.tls.ca or api.tls.cert is set")
	return cmd
}

// remote is the admin API of a node.
type remote struct {
	base  string
	token string
	http  *http.Client
}

// remote returns the API of the node that the flags name.
func (a *app) remote() (*remote, error) {
	cfg, err := a.load(a.input())
	if err != nil {
		return nil, err
	}
	secured, err := host.ClientTLS(cfg.API.TLS)
	if err != nil {
		return nil, err
	}
	base := a.node.address
	switch {
	case strings.Contains(base, "://"):
	case secured != nil || a.node.tls:
		base = "https://" + base
	default:
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" {
		return nil, fault.New(fault.Usage, "--addr is %.100q, want host:port or a URL such as https://emitd.example.org/ops", a.node.address)
	}
	if u.Scheme == "https" && secured == nil {
		secured = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	r := &remote{base: strings.TrimSuffix(base, "/") + "/api/v1", http: &http.Client{Transport: &http.Transport{TLSClientConfig: secured, DisableKeepAlives: true}}}
	r.token, err = a.bearer(u.Host)
	return r, err
}

// bearer returns the token: that of --token-file or, for a node of this machine, that of the configuration, which an emitd
// dev in this directory has too.
func (a *app) bearer(to string) (string, error) {
	if a.node.token != "" {
		text, err := os.ReadFile(a.node.token)
		if err != nil {
			return "", fault.New(fault.AccessFile, "--token-file: %w", err)
		}
		return firstToken(text), nil
	}
	if !config.Loopback(to) {
		return "", nil
	}
	cfg, err := a.loadToRead()
	if err != nil || cfg.API.TokensFile == "" {
		return "", nil //nolint:nilerr // without a configuration there is no token
	}
	text, _ := os.ReadFile(cfg.API.TokensFile) // a node that requires a token will say so
	return firstToken(text), nil
}

// longestAnswer bounds an answer of a node.
const longestAnswer = 256 << 20

// get decodes what the node answers.
func (r *remote) get(ctx context.Context, path string, query url.Values, to any) error {
	target := r.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return fault.New(fault.Usage, "--addr: %w", err)
	}
	return r.do(req, to)
}

// do makes a call and decodes what the node answers.
func (r *remote) do(req *http.Request, to any) error {
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return fault.New(fault.NodeUnreachable, "no answer of the node at %s: %w", r.base, unwrapURL(err))
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, longestAnswer)
	switch kind := resp.Header.Get("Content-Type"); {
	case (resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusAccepted) && kind == "application/json":
		if err := json.NewDecoder(body).Decode(to); err != nil {
			return fault.New(fault.NodeUnreachable, "the answer of the node at %s breaks off or cannot be read: %w", r.base, err)
		}
		return nil
	case kind == fault.ProblemType:
		var p fault.Problem
		if err := json.NewDecoder(body).Decode(&p); err == nil && p.Code != "" {
			return &fault.Fault{Code: p.Code, What: p.Detail, Why: p.Why, Do: p.Hint}
		}
	}
	return fault.New(fault.NodeUnreachable, "%s answers %d: the address may not belong to an emitd with this API", req.URL, resp.StatusCode)
}

// unwrapURL leaves out the address, which the message has already.
func unwrapURL(err error) error {
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err
	}
	return err
}

// status returns the cluster as the node sees it.
func (r *remote) status(ctx context.Context, all bool, maxWait time.Duration) (view.Status, error) {
	var s view.Status
	err := r.get(ctx, "/status", url.Values{"all": {strconv.FormatBool(all)}, "max_wait": {maxWait.String()}}, &s)
	return s, err
}

// now returns the store's clock.
func (r *remote) now(ctx context.Context) (time.Time, error) {
	var answer body.LeaderAnswer
	err := r.get(ctx, "/leader", nil, &answer)
	return answer.At.Time, err
}

// explain returns why a unit is where it is.
func (r *remote) explain(ctx context.Context, u daemon.Unit) (view.Explained, error) {
	var e view.Explained
	err := r.get(ctx, "/units/"+url.PathEscape(u.String()), nil, &e)
	return e, err
}

// terms returns the terms in the history, the newest first.
func (r *remote) terms(ctx context.Context, since time.Duration) ([]view.Term, error) {
	var all []view.Term
	query := url.Values{"limit": {"1000"}, "since": {since.String()}}
	for {
		var page body.TermPage
		if err := r.get(ctx, "/terms", query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Terms...)
		if page.Cursor == nil {
			return all, nil
		}
		query.Set("cursor", *page.Cursor)
	}
}

// Events returns the events after a number, as a store does.
func (r *remote) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	var page struct {
		Events []daemon.Event `json:"events"`
		Head   int64          `json:"head"`
		Oldest int64          `json:"oldest"`
	}
	query := url.Values{"order": {"oldest"}, "after": {fmt.Sprint(after)}, "limit": {fmt.Sprint(limit)}}
	if err := r.get(ctx, "/events", query, &page); err != nil {
		return nil, err
	}
	return &storage.EventPage{Events: page.Events, Head: page.Head, Oldest: page.Oldest}, nil
}
