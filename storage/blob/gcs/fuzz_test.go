package gcs_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/gcs"
)

// FuzzAnswers: whatever the store answers, each call ends, with a result that the contract allows
// or an error of a known kind. A returned version is a valid one.
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
			return // impossible in a header
		}
		header := http.Header{"Retry-After": {generation}, "Location": {generation}}
		if generation != "" {
			header.Set("X-Goog-Generation", generation)
		}
		blobtest.CheckAnyAnswer(t, func(enough func()) blob.Bucket {
			b, err := gcs.Open(t.Context(), gcs.Config{
				Bucket: "bucket", Prefix: "some/where", Endpoint: "http://store.test", Tokens: oauth2.StaticTokenSource(&oauth2.Token{AccessToken: token}),
				Client: &http.Client{Transport: &blobtest.FixedAnswer{Status: 200 + int(status)%400, Header: header, Body: body, Enough: enough}},
				Retry:  blob.RetryPolicy{Pause: time.Microsecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}, func(v blob.Version) bool { return v != "" && v[0] > '0' && strings.Trim(string(v), "0123456789") == "" })
	})
}

// FuzzParseURL: every address that parses gives a usable config.
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
