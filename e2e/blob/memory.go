package blob

import (
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
)

// memory is a bucket in memory (internal/storage/mem) behind the part of the S3 protocol that the backend s3
// uses, without authentication. Several processes can use it, and any of them can be killed.
//
// Each first segment of a key is a separate bucket, in which the rest is the key.
type memory struct {
	mu      sync.Mutex // held during a write with its nonce
	buckets map[string]*mem.Bucket
	nonces  map[string]string // of the objects, by key including the segment
}

// part returns the bucket of a key, and the key within it.
func (m *memory) part(key string) (*mem.Bucket, string) {
	segment, rest, _ := strings.Cut(key, "/")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.buckets[segment] == nil {
		m.buckets[segment] = mem.New(mem.Config{})
	}
	return m.buckets[segment], rest
}

const nonceHeader = "X-Amz-Meta-Emitd-Nonce"

// NewMemory returns an empty bucket in memory that answers as a server of the kind Memory does, for callers that serve it
// themselves. [S3URL] and [S3Credentials] are its URL and credentials.
func NewMemory() http.Handler {
	return &memory{buckets: map[string]*mem.Bucket{}, nonces: map[string]string{}}
}

// serveMemory serves until the process is killed.
func serveMemory(address string) error {
	server := &http.Server{Addr: address, Handler: NewMemory(), ReadHeaderTimeout: readyTimeout}
	return fmt.Errorf("memory: %w", server.ListenAndServe())
}

// ServeHTTP answers /bucket/key, and /bucket?list-type=2.
func (m *memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	var err error
	switch {
	case name != bucket:
		err = blob.ErrNoBucket
	case key == "":
		err = m.list(w, r)
	case r.Method == http.MethodPut:
		err = m.put(w, r, key)
	case r.Method == http.MethodDelete:
		b, inner := m.part(key)
		if err = b.Delete(r.Context(), inner); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		err = m.get(w, r, key)
	}
	if err != nil {
		refuse(w, err)
	}
}

// refuse answers with the status and the code for an error.
func refuse(w http.ResponseWriter, err error) {
	for _, c := range []struct {
		kind   error
		status int
		code   string
	}{
		{blob.ErrNotModified, http.StatusNotModified, "NotModified"},
		{blob.ErrNotFound, http.StatusNotFound, "NoSuchKey"},
		{blob.ErrNoBucket, http.StatusNotFound, "NoSuchBucket"},
		{blob.ErrExists, http.StatusPreconditionFailed, "PreconditionFailed"},
		{blob.ErrChanged, http.StatusPreconditionFailed, "PreconditionFailed"},
	} {
		if errors.Is(err, c.kind) {
			w.WriteHeader(c.status)
			if c.status != http.StatusNotModified {
				fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", c.code, c.code)
			}
			return
		}
	}
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

func quoted(v blob.Version) string   { return strconv.Quote(string(v)) }
func unquoted(s string) blob.Version { return blob.Version(strings.Trim(s, `"`)) }

func (m *memory) put(w http.ResponseWriter, r *http.Request, key string) error {
	data, err := io.ReadAll(r.Body)
	if err != nil || int64(len(data)) != r.ContentLength {
		return fmt.Errorf("the request broke off: %w", errors.Join(err, io.ErrUnexpectedEOF))
	}
	b, inner := m.part(key)
	m.mu.Lock()
	defer m.mu.Unlock()
	var v blob.Version
	ctx := context.WithoutCancel(r.Context()) // a write is not interrupted
	switch old := r.Header.Get("If-Match"); {
	case r.Header.Get("If-None-Match") == "*":
		v, err = b.Create(ctx, inner, data)
	case old != "":
		v, err = b.Replace(ctx, inner, data, unquoted(old))
	default:
		v, err = b.Write(ctx, inner, data)
	}
	if err != nil {
		return err
	}
	m.nonces[key] = r.Header.Get(nonceHeader)
	w.Header().Set("ETag", quoted(v))
	return nil
}

func (m *memory) get(w http.ResponseWriter, r *http.Request, key string) error {
	b, inner := m.part(key)
	m.mu.Lock()
	o, err := b.ReadNewer(r.Context(), inner, unquoted(r.Header.Get("If-None-Match")))
	nonce := m.nonces[key]
	m.mu.Unlock()
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("ETag", quoted(o.Version))
	h.Set(nonceHeader, nonce)
	status := http.StatusOK
	var from, to int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
		if len(o.Data) == 0 {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return nil
		}
		o.Data, status = o.Data[:min(to+1, len(o.Data))], http.StatusPartialContent
	}
	h.Set("Content-Length", strconv.Itoa(len(o.Data)))
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		_, _ = w.Write(o.Data) // an error means that the client has gone
	}
	return nil
}

func (m *memory) list(w http.ResponseWriter, r *http.Request) error {
	type content struct {
		Key, ETag    string
		Size         int64
		LastModified time.Time
	}
	var result struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Contents    []content
	}
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("max-keys"))
	segment, _, _ := strings.Cut(q.Get("prefix"), "/")
	b, inner := m.part(q.Get("prefix"))
	page, err := b.List(r.Context(), inner, strings.TrimPrefix(q.Get("start-after"), segment+"/"), limit)
	if err != nil {
		return err
	}
	result.IsTruncated = page.More
	for _, e := range page.Entries {
		result.Contents = append(result.Contents, content{segment + "/" + e.Key, quoted(e.Version), e.Size, e.Modified.UTC()})
	}
	w.Header().Set("Content-Type", "application/xml")
	return xml.NewEncoder(w).Encode(result)
}
