package s3_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
	"github.com/emitd/emitd/storage/blob/s3"
)

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDTEST", SecretAccessKey: secret}, nil
})

// FuzzAnswers: whatever the store answers, each call ends, with a result that the contract allows
// or an error of a known kind. A returned version is a valid one.
func FuzzAnswers(f *testing.F) {
	f.Add(uint16(0), `"etag"`, []byte("data"))
	f.Add(uint16(0), ``, []byte("data"))
	f.Add(uint16(0), `"e"`, []byte(`<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>some/where/b</Key><ETag>"1"</ETag><Size>3</Size></Contents></ListBucketResult>`))
	f.Add(uint16(206-200), `"7"`, []byte("data"))
	f.Add(uint16(404-200), "", []byte(`<Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>`))
	f.Add(uint16(400-200), "3", []byte(`<Error><Code>RequestTimeout</Code></Error>`))
	f.Add(uint16(409-200), "", []byte(`<Error><Code>ConditionalRequestConflict</Code></Error>`))
	f.Add(uint16(412-200), "5", []byte(`{"error":{}}`))
	f.Add(uint16(416-200), "1", []byte("<html>"))
	f.Add(uint16(301-200), "http://elsewhere.test", []byte(nil))
	f.Fuzz(func(t *testing.T, status uint16, etag string, body []byte) {
		if strings.ContainsAny(etag, "\r\n") {
			return // impossible in a header
		}
		header := http.Header{"Retry-After": {etag}, "Location": {etag}, "X-Amz-Meta-Emitd-Nonce": {etag}}
		if etag != "" {
			header.Set("Etag", etag)
		}
		blobtest.CheckAnyAnswer(t, func(enough func()) blob.Bucket {
			b, err := s3.Open(t.Context(), s3.Config{
				Bucket: "bucket", Prefix: "some/where", Endpoint: "http://store.test", PathStyle: true, Region: "eu-test-1", Credentials: credentials,
				Client: &http.Client{Transport: &blobtest.FixedAnswer{Status: 200 + int(status)%400, Header: header, Body: body, Enough: enough}},
				Retry:  blob.RetryPolicy{Pause: time.Microsecond},
			})
			if err != nil {
				t.Fatal(err)
			}
			return b
		}, func(v blob.Version) bool { return v != "" })
	})
}

// FuzzParseURL: every address that parses gives a usable config.
func FuzzParseURL(f *testing.F) {
	f.Add("s3://bucket/prefix?region=eu-central-1&endpoint=https://host:1&path_style=true&sse=aws:kms&kms_key=ID")
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := s3.ParseURL(raw)
		if err != nil {
			return
		}
		c.Credentials = credentials
		if _, err := s3.Open(context.Background(), c); err != nil {
			t.Fatalf("%q: %+v: %v", raw, c, err)
		}
	})
}
