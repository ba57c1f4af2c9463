package s3_test

import (
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// fake is the part of S3 that the backend uses, without authentication. Path style.
type fake struct {
	mu      sync.Mutex
	objects map[string]stored
	bad     bool // ignores conditions
	refuse  int  // answers every request with this status
	code    string
	last    http.Header // of the last PUT
}

type stored struct {
	data []byte
	etag string
	meta string
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case err != nil:
	case f.refuse != 0:
		fail(w, f.refuse, f.code)
	case bucket != "bucket":
		fail(w, http.StatusNotFound, "NoSuchBucket")
	case key == "":
		f.list(w, r)
	case r.Method == http.MethodPut:
		f.put(w, r, key, body)
	case r.Method == http.MethodDelete:
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		f.get(w, r, key)
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<Error><Code>%s</Code><Message>about %s</Message></Error>", code, code)
}

func (f *fake) put(w http.ResponseWriter, r *http.Request, key string, body []byte) {
	f.last = r.Header.Clone()
	o, ok := f.objects[key]
	if !f.bad {
		switch match := r.Header.Get("If-Match"); {
		case r.Header.Get("If-None-Match") == "*" && ok, match != "" && ok && match != o.etag:
			fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		case match != "" && !ok:
			fail(w, http.StatusNotFound, "NoSuchKey")
			return
		}
	}
	sum := md5.Sum(body)
	o = stored{data: body, etag: `"` + hex.EncodeToString(sum[:]) + `"`, meta: r.Header.Get("X-Amz-Meta-Emitd-Nonce")}
	f.objects[key] = o
	w.Header().Set("ETag", o.etag)
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, key string) {
	o, ok := f.objects[key]
	if !ok {
		fail(w, http.StatusNotFound, "NoSuchKey")
		return
	}
	w.Header().Set("ETag", o.etag)
	w.Header().Set("X-Amz-Meta-Emitd-Nonce", o.meta)
	if r.Header.Get("If-None-Match") == o.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	data, status := o.data, http.StatusOK
	var from, to int
	if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
		if len(data) == 0 {
			fail(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		data, status = data[:min(to+1, len(data))], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		_, _ = w.Write(data)
	}
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	type content struct {
		Key, ETag    string
		Size         int
		LastModified time.Time
	}
	var result struct {
		XMLName     xml.Name `xml:"ListBucketResult"`
		IsTruncated bool
		Contents    []content
	}
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("max-keys"))
	var keys []string
	for key := range f.objects {
		if strings.HasPrefix(key, q.Get("prefix")) && key > q.Get("start-after") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for i, key := range keys {
		if i == limit {
			result.IsTruncated = true
			break
		}
		o := f.objects[key]
		result.Contents = append(result.Contents, content{key, o.etag, len(o.data), time.Now().UTC()})
	}
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(result)
}
