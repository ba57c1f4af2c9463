package gcs

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// tokenTimeout bounds one request for an access token.
const tokenTimeout = 15 * time.Second

// tokenContext returns the context in which credentials request tokens, as long as the bucket is in use. It does not end with
// ctx, which bounds only Open: most credentials keep it for the token of each later hour.
func tokenContext(ctx context.Context) context.Context {
	ctx = context.WithoutCancel(ctx)
	if ctx.Value(oauth2.HTTPClient) != nil {
		return ctx
	}
	return context.WithValue(ctx, oauth2.HTTPClient, &http.Client{Transport: transport(), Timeout: tokenTimeout})
}

// authorized is a transport that adds an access token to each request. Unlike oauth2.Transport, it waits for the token no
// longer than the request's context lasts. Requests that come while a token is fetched wait for the same one.
type authorized struct {
	tokens   oauth2.TokenSource
	base     http.RoundTripper // nil is http.DefaultTransport
	fetching singleflight.Group
}

// RoundTrip implements http.RoundTripper.
func (a *authorized) RoundTrip(r *http.Request) (*http.Response, error) {
	token, err := a.token(r.Context())
	if err != nil {
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, err
	}
	r = r.Clone(r.Context())
	token.SetAuthHeader(r)
	return cmp.Or(a.base, http.DefaultTransport).RoundTrip(r)
}

// errNoToken is the error of a request whose context has ended while it waited for its token.
var errNoToken = errors.New("the access token has not arrived")

func (a *authorized) token(ctx context.Context) (*oauth2.Token, error) {
	var token *oauth2.Token
	fetched := a.fetching.DoChan("", func() (any, error) { return a.tokens.Token() })
	select {
	case f := <-fetched:
		if f.Err != nil {
			return nil, f.Err
		}
		token, _ = f.Val.(*oauth2.Token)
		return token, nil
	case <-ctx.Done():
		return nil, errNoToken
	}
}
