package gcs_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/gcs"
)

// said is a store that answers every request alike, and ends the call when there are too many.
type said struct {
	status     int
	generation string
	body       []byte
	requests   int
	end        func()
}

func (s *said) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	if s.requests++; s.requests == 8 {
		s.end()
	}
	header := http.Header{"Retry-After": {s.generation}, "Location": {s.generation}}
	if s.generation != "" {
		header.Set("X-Goog-Generation", s.generation)
	}
	return &http.Response{
		StatusCode: s.status, Header: header, Request: r, Body: io.NopCloser(bytes.NewReader(s.body)), ContentLength: int64(len(s.body)),
	}, nil
}

// FuzzAnswers: whatever the store answers, each call ends, with what the contract says or an error of a
// known kind; what is returned as a version is one.
func FuzzAnswers(f *testing.F) {
	f.Add(uint16(0), "7", []byte(`{"generation":"8","metadata":{"emitd-nonce":"x"}}`))
	f.Add(uint16(0), "", []byte(`{"items":[{"name":"some/where/a","generation":"1","size":"3","updated":"2026-01-02T03:04:05.678Z"},{"name":"x"}],"nextPageToken":"t"}`))
	f.Add(uint16(206-200), "7", []byte("data"))
	f.Add(uint16(404-200), "", []byte(`{"error":{"code":404,"message":"The specified bucket does not exist."}}`))
	f.Add(uint16(412-200), "5", []byte(`{"error":{}}`))
	f.Add(uint16(416-200), "1", []byte("<html>"))
	f.Add(uint16(503-200), "-1", []byte("null"))
	f.Add(uint16(302-200), "/elsewhere", []byte(nil))
	f.Fuzz(func(t *testing.T, status uint16, generation string, body []byte) {
		if strings.ContainsAny(generation, "\r\n") {
			return // no header can say that
		}
		blobtest.Answered(t, func(end func()) blob.Bucket {
			b, err := gcs.Open(t.Context(), gcs.Config{
				Bucket: "bucket", Prefix: "some/where", Endpoint: "http://store.test", Tokens: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}),
				Client: &http.Client{Transport: &said{status: 200 + int(status)%400, generation: generation, body: body, end: end}},
				Policy: gcs.Policy{Pause: time.Microsecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}, func(v blob.Version) bool { return v != "" && v[0] > '0' && strings.Trim(string(v), "0123456789") == "" })
	})
}

// FuzzParseURL: what is read from an address is usable.
func FuzzParseURL(f *testing.F) {
	f.Add("gs://bucket/prefix?endpoint=http://127.0.0.1:1", "127.0.0.1:2")
	f.Fuzz(func(t *testing.T, raw, emulator string) {
		c, err := gcs.ParseURL(raw, emulator)
		if err != nil {
			return
		}
		c.Tokens = oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token})
		if _, err := gcs.Open(context.Background(), c); err != nil {
			t.Fatalf("%q: %+v: %v", raw, c, err)
		}
	})
}
