package webhook

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// How much of an answer's body is read, and how much is kept as the cause, in bytes.
const (
	maxRead = 4 << 10
	maxKept = 200
)

// maxRetryAfter bounds what a receiver may ask for.
const maxRetryAfter = 24 * time.Hour

// send sends the request and classifies the answer. It also reports whether the receiver is overloaded.
func (s *Sink) send(ctx context.Context, req *http.Request) (overloaded bool, err error) {
	resp, err := s.do(req)
	if err != nil {
		return false, s.unanswered(ctx, req, err)
	}
	defer s.slots.answered()
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 { // the status decides; what is read lets the connection be used again
		_, _ = io.CopyN(io.Discard, resp.Body, maxRead)
		return false, nil
	}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRead))
	overloaded = resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable
	return overloaded, s.classify(resp, body)
}

// do returns the answer to a request, after redirects. The client follows them, from the first one on.
func (s *Sink) do(req *http.Request) (*http.Response, error) {
	if s.redirects.Load() {
		return s.client.Do(req)
	}
	resp, err := s.transport.RoundTrip(req)
	if err != nil || resp.StatusCode != http.StatusTemporaryRedirect && resp.StatusCode != http.StatusPermanentRedirect {
		return resp, err
	}
	s.redirects.Store(true)
	_, _ = io.CopyN(io.Discard, resp.Body, maxRead)
	_ = resp.Body.Close()
	if req.Body, err = req.GetBody(); err != nil {
		return nil, err
	}
	return s.client.Do(req)
}

// unanswered returns the error for a request without an answer.
func (s *Sink) unanswered(ctx context.Context, req *http.Request, err error) error {
	err = sink.WithoutURL(err)
	what := "post to " + sink.Host(req.URL.String())
	switch {
	case sink.Unreachable(err) && ctx.Err() == nil:
		return sink.Down(what, err)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", what, context.Cause(ctx))
	case hangUp(err):
		return progress.Unanswered(fmt.Errorf("%s: the receiver hung up: %s", what, s.redact(err.Error())))
	default:
		return fmt.Errorf("%s: %s", what, s.redact(err.Error()))
	}
}

// hangUp reports whether the receiver broke the connection before it answered.
func hangUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// classify returns the kind of an answer other than 2xx.
func (s *Sink) classify(resp *http.Response, body []byte) error {
	code := resp.StatusCode
	err := errors.New(s.describe(resp, body))
	switch {
	case code == http.StatusProxyAuthRequired, slices.Contains(s.cfg.DownOn, code), code == http.StatusUnauthorized && !s.byTopic():
		err = fmt.Errorf("%w: %w", outbox.ErrSinkDown, err)
	case code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500, code < 400:
	default:
		return fmt.Errorf("%w: %w", outbox.ErrPermanent, err)
	}
	if after := retryAfter(resp.Header.Get("Retry-After"), s.now()); after > 0 {
		return &outbox.RetryAfterError{After: after, Err: err}
	}
	return err
}

// describe returns the cause that operators read.
func (s *Sink) describe(resp *http.Response, body []byte) string {
	text := fmt.Sprintf("%s answered %s", sink.Host(resp.Request.URL.String()), s.redact(resp.Status))
	if resp.StatusCode/100 == 3 {
		return text + " to " + sink.Host(resp.Header.Get("Location")) + ", which is not followed"
	}
	// Redact before cutting: a secret that is cut in half would no longer be found.
	kept := strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(s.redact(string(body)), "?"))
	kept = strings.Join(strings.Fields(kept), " ")
	if len(kept) > maxKept {
		kept = strings.ToValidUTF8(kept[:maxKept], "") + "…"
	}
	if kept == "" {
		return text
	}
	return text + ": " + kept
}

// redact hides the configured credentials, because a receiver's answer may contain them.
func (s *Sink) redact(text string) string { return sink.Redact(text, s.hidden...) }

// login returns the header for the login in a URL, "" if there is none.
func login(u *url.Userinfo) string {
	if u == nil {
		return ""
	}
	password, _ := u.Password()
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password))
}

// credentials returns the credentials of a configuration, the longest first: its secrets, the values of its headers, the
// login in its URL as it stands there and as it is sent, and what may be a credential in the rest of the URL.
func credentials(c *Config, user *url.Userinfo) []sink.Secret {
	out := append(settings(c, user), ofURL(c.URL)...)
	slices.SortStableFunc(out, func(a, b sink.Secret) int { return len(b) - len(a) }) // one may be a part of another
	return out
}

// leastSecret is the length in bytes from which a part of a URL may be a credential. Shorter ones are words that are in
// many answers.
const leastSecret = 8

// ofURL returns what may be a credential in path and query of a URL, which many receivers know their callers by: the path,
// its segments, the query and its values, as they stand there and decoded, each without {topic}.
func ofURL(raw string) (out []sink.Secret) {
	_, rest, _ := strings.Cut(raw, "://")
	rest, _, _ = strings.Cut(rest, "#")
	path, query, _ := strings.Cut(rest, "?")
	_, path, _ = strings.Cut(path, "/")
	parts := append(strings.Split(path, "/"), "/"+path, query)
	for pair := range strings.SplitSeq(query, "&") {
		_, value, named := strings.Cut(pair, "=")
		if named {
			parts = append(parts, value)
		}
	}
	for _, part := range parts {
		for text := range strings.SplitSeq(part, "{topic}") {
			inPath, _ := url.PathUnescape(text)
			inQuery, _ := url.QueryUnescape(text)
			for _, spelling := range []string{text, inPath, inQuery, (&url.URL{Path: inPath}).EscapedPath()} {
				if len(spelling) >= leastSecret {
					out = append(out, sink.Secret(spelling))
				}
			}
		}
	}
	return out
}

// settings returns the credentials that are settings of their own, and the login in the URL.
func settings(c *Config, user *url.Userinfo) []sink.Secret {
	out := slices.Clone(c.Secrets)
	for _, value := range c.Headers {
		out = append(out, value)
		if _, credential, two := strings.Cut(string(value), " "); two { // Bearer …
			out = append(out, sink.Secret(credential))
		}
	}
	if user == nil {
		return out
	}
	password, _ := user.Password()
	sent := strings.TrimPrefix(login(user), "Basic ")
	// Without a password, the name is a token.
	return append(out, sink.Secret(sent), sink.Secret(cmp.Or(password, user.Username())))
}

// retryAfter parses seconds or a date; 0 means none.
func retryAfter(value string, now time.Time) time.Duration {
	var after time.Duration
	if seconds, err := strconv.ParseInt(value, 10, 32); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		after = at.Sub(now)
	}
	return min(max(after, 0), maxRetryAfter)
}
