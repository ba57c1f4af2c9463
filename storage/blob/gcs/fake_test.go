package gcs_test

import (
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// fake is the part of the JSON API that the backend uses.
type fake struct {
	mu         sync.Mutex
	objects    map[string]stored
	generation int64
	bad        bool // ignores conditions
	refuse     int  // answers every request with this status
	mute       bool // answers have no generation
	token      string
	between    func() // runs after a download or upload was answered
}

type stored struct {
	data       []byte
	generation int64
	meta       map[string]string
}

type item struct {
	Name       string            `json:"name"`
	Generation string            `json:"generation"`
	Size       string            `json:"size"`
	Updated    string            `json:"updated"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

func (o stored) item(name string) item {
	return item{name, strconv.FormatInt(o.generation, 10), strconv.Itoa(len(o.data)), "2026-01-02T03:04:05.678Z", o.meta}
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	key, isObject := strings.CutPrefix(r.URL.Path, "/storage/v1/b/bucket/o/")
	switch {
	case f.refuse != 0:
		fail(w, f.refuse, "refused")
	case f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token:
		fail(w, http.StatusUnauthorized, "Invalid Credentials")
	case !strings.Contains(r.URL.Path, "/b/bucket/"):
		fail(w, http.StatusNotFound, "The specified bucket does not exist.")
	case r.Method == http.MethodPost:
		f.upload(w, r)
	case !isObject:
		f.list(w, r)
	case r.Method == http.MethodDelete:
		if _, ok := f.objects[key]; !ok {
			fail(w, http.StatusNotFound, "No such object")
			return
		}
		delete(f.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default:
		f.get(w, r, key)
	}
	if f.between != nil && (r.Method == http.MethodPost || r.URL.Query().Get("alt") == "media") {
		f.between()
	}
}

func fail(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"error":{"code":%d,"message":%q}}`, status, message)
}

func (f *fake) upload(w http.ResponseWriter, r *http.Request) {
	_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	parts := multipart.NewReader(r.Body, params["boundary"])
	var meta struct {
		Name     string            `json:"name"`
		Metadata map[string]string `json:"metadata"`
	}
	first, err := parts.NextPart()
	if err == nil {
		err = json.NewDecoder(first).Decode(&meta)
	}
	var data []byte
	if second, e := parts.NextPart(); err == nil && e == nil {
		data, err = io.ReadAll(second)
	}
	if err != nil {
		return // the connection broke
	}
	if match := r.URL.Query().Get("ifGenerationMatch"); match != "" && !f.bad && match != strconv.FormatInt(f.objects[meta.Name].generation, 10) {
		fail(w, http.StatusPreconditionFailed, "conditionNotMet")
		return
	}
	f.generation++
	o := stored{data: data, generation: f.generation, meta: meta.Metadata}
	f.objects[meta.Name] = o
	_ = json.NewEncoder(w).Encode(o.item(meta.Name))
}

func (f *fake) get(w http.ResponseWriter, r *http.Request, key string) {
	o, ok := f.objects[key]
	q := r.URL.Query()
	switch {
	case !ok:
		fail(w, http.StatusNotFound, "No such object: bucket/"+key)
	case q.Get("alt") != "media":
		_ = json.NewEncoder(w).Encode(o.item(key))
	case q.Get("ifGenerationNotMatch") == strconv.FormatInt(o.generation, 10):
		w.WriteHeader(http.StatusNotModified)
	default:
		if !f.mute {
			w.Header().Set("X-Goog-Generation", strconv.FormatInt(o.generation, 10))
		}
		data, status := o.data, http.StatusOK
		var from, to int
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
			if len(data) == 0 {
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return
			}
			data, status = data[:min(to+1, len(data))], http.StatusPartialContent
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		w.WriteHeader(status)
		_, _ = w.Write(data)
	}
}

func (f *fake) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, _ := strconv.Atoi(q.Get("maxResults"))
	var names []string
	for name := range f.objects {
		if strings.HasPrefix(name, q.Get("prefix")) && name >= q.Get("startOffset") && name > q.Get("pageToken") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out struct {
		Items         []item `json:"items"`
		NextPageToken string `json:"nextPageToken,omitempty"`
	}
	for i, name := range names {
		if i == limit {
			out.NextPageToken = names[i-1]
			break
		}
		out.Items = append(out.Items, f.objects[name].item(name))
	}
	_ = json.NewEncoder(w).Encode(out)
}
