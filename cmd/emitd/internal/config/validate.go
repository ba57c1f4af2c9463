package config

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/exec"
	"github.com/emitd/emitd/internal/admin/fault"

	"github.com/emitd/emitd/internal/address"
	"github.com/emitd/emitd/internal/pgerror"
	scheduling "github.com/emitd/emitd/internal/schedule"
)

// mostOutput is the largest daemons.output_buffer.
const mostOutput = 16 << 20

// validator validates the values together. Each fault names the origin of the value.
type validator struct {
	*Loaded
	in     Input
	broken bool // some value could not be parsed: rules that need all values are skipped
	faults fault.List
}

func validate(l *Loaded, in Input, broken bool) fault.List {
	v := &validator{Loaded: l, in: in, broken: broken}
	v.names()
	v.store()
	v.objects()
	v.outbox()
	v.listen()
	v.timing()
	v.queue()
	v.execs()
	v.checkDisabled()
	return v.faults
}

// complain adds a fault about the setting at path.
func (v *validator) complain(code fault.Code, path, format string, args ...any) *fault.Fault {
	o := v.origin(path)
	what := fmt.Sprintf("%s "+format, append([]any{path}, args...)...)
	var f *fault.Fault
	switch {
	case o.place.doc != nil:
		f = o.place.doc.fault(code, o.place, what, "")
	case o.Layer == FromDefault:
		f = fault.New(code, "%s", what)
	default:
		f = fault.New(code, "%s: %s", o.Name, what)
	}
	v.faults = append(v.faults, f)
	return f
}

var (
	validCluster = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	validSQL     = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	validEnv     = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

const (
	longestName    = 253    // of a host name
	maxConnections = 10_000 // more than a server accepts
)

func (v *validator) names() {
	if !validCluster.MatchString(v.Cluster) {
		v.complain(fault.BadValue, "cluster", "is %q, want lower-case letters, digits and ._- (at most 63)", v.Cluster)
	}
	if n := v.Node.Name; len(n) > longestName || strings.ContainsFunc(n, notPrintable) || strings.TrimSpace(n) != n || n == "" {
		v.complain(fault.BadValue, "node.name", "is %.40q, want 1 to %d printable characters", n, longestName)
	}
	if v.Node.ID != "" {
		if id, err := uuid.Parse(v.Node.ID); err != nil || id.String() != v.Node.ID {
			v.complain(fault.BadValue, "node.id", "is %.60q, want a UUID such as 0198f3a2-7c1e-7b60-9a53-0e4f6f0f6a11, or nothing", v.Node.ID)
		}
	}
	if g := v.Node.Group; g != "" && daemon.ValidateGroup(g) != nil {
		v.complain(fault.BadValue, "node.group", "is %.80q, want lower-case letters, digits and ._- (at most 63)", g)
	}
	if v.Node.Capacity < 1 {
		v.complain(fault.BadValue, "node.capacity", "is %d, want 1 or more", v.Node.Capacity)
	}
	if n := v.Node.MaxWeight; n < 0 {
		v.complain(fault.BadValue, "node.max_weight", "is %d, want 1 or more, or 0 for no limit", n)
	}
	if n := v.Daemons.OutputBuffer; n < 0 || n > mostOutput {
		v.complain(fault.BadValue, "daemons.output_buffer", "is %d bytes, want 0 (keep nothing) to %d", n, mostOutput)
	}
	if n := v.Coordinator.MaxMovesPerRound; n < 0 {
		v.complain(fault.BadValue, "coordinator.max_moves_per_round", "is %d, want 0 (move none) or more", n)
	}
	if n := v.Coordinator.BrakePercent; n < 0 || n > 100 {
		v.complain(fault.BadValue, "coordinator.brake_percent", "is %d, want 0 (no brake) to 100", n)
	}
	for _, name := range sortedKeys(v.Node.Labels) {
		if name == "" || strings.ContainsFunc(name+v.Node.Labels[name], notPrintable) {
			v.complain(fault.BadValue, "node.labels", "has %q: %q, want printable text", name, v.Node.Labels[name])
		}
	}
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

func (v *validator) store() {
	if !validSQL.MatchString(v.Store.Schema) {
		v.complain(fault.BadValue, "store.schema", "is %.80q, want %s", v.Store.Schema, validSQL)
	}
	for _, n := range []struct{ path, name string }{
		{"store.prefix", v.Store.Prefix}, {"outbox.schema", v.Outbox.Schema}, {"outbox.prefix", v.Outbox.Prefix},
	} {
		if n.name != "" && !validSQL.MatchString(n.name) {
			v.complain(fault.BadValue, n.path, "is %.80q, want %s", n.name, validSQL)
		}
	}
	if n := v.Store.MaxConnections; n < minConnections || n > maxConnections {
		v.complain(fault.BadValue, "store.max_connections", "is %d, want %d to %d", n, minConnections, maxConnections)
	}
	if v.Store.URL == "" {
		if v.in.Serving && !v.in.Dev && !v.broken {
			v.faults = append(v.faults, fault.New(fault.StoreURL, "store.url is not set: a node needs the store of its cluster"))
		}
		return
	}
	if why := storeURL(v.Store.URL); why != "" {
		v.complain(fault.StoreURL, "store.url", "%s", why)
	}
}

// storeURL says why the URL cannot name a store, or "". Its text contains at most the scheme of the URL.
func storeURL(text string) string {
	u, err := address.URL(text)
	if err != nil {
		return err.Error()
	}
	switch u.Scheme {
	case "sqlite":
		switch {
		case u.Host != "":
			return "is not absolute: want three slashes and the whole path, as in sqlite:///srv/emitd/cluster.db"
		case len(u.Path) < 2 || strings.HasSuffix(u.Path, "/"):
			return "names no file, want sqlite:///absolute/path.db"
		case u.RawQuery != "" || u.Fragment != "":
			return "has a query or fragment; only the path counts (a ? or # in it is written %3F or %23)"
		}
	case "postgres", "postgresql":
		if u.Opaque != "" {
			return "has no slashes after the scheme, want postgres://user@host/database"
		}
		if err := pgerror.Check(text); err != nil {
			return err.Error()
		}
	case "file", "s3", "gs":
		return objectURL(text)
	case "mem":
		return "names a store in memory: every process would have its own; see emitd dev --ephemeral"
	case "":
		return "has no scheme, want sqlite:///absolute/path.db or postgres://user@host/database"
	default:
		near := Nearest(u.Scheme, []string{"sqlite", "postgres", "file"})
		if near != "" {
			near = "; did you mean " + near + "?"
		}
		return fmt.Sprintf("has %s, want sqlite, postgres, file, s3 or gs%s", schemeOf(text), near)
	}
	return ""
}

// longestScheme bounds the scheme that is shown, because a text that is not a URL may be a secret from
// its first letter.
const longestScheme = 12

// schemeOf names the scheme of a text, if the text looks like a URL.
func schemeOf(text string) string {
	if scheme, _, is := strings.Cut(text, "://"); is && len(scheme) <= longestScheme && validSQL.MatchString(scheme) {
		return fmt.Sprintf("the scheme %q", scheme)
	}
	return "another form"
}

// SQLitePath returns the file that a sqlite:// URL names.
func SQLitePath(text string) (string, bool) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "sqlite" {
		return "", false
	}
	p := u.Path
	if len(p) > 2 && p[0] == '/' && p[2] == ':' { // /C:/dir/file.db
		p = p[1:]
	}
	return filepath.FromSlash(p), true
}

// SQLiteURL returns the URL of an absolute path.
func SQLiteURL(file string) string { return pathURL("sqlite", file) }

// FileURL returns the URL of an absolute directory.
func FileURL(dir string) string { return pathURL("file", dir) }

func pathURL(scheme, file string) string {
	p := filepath.ToSlash(file)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	return (&url.URL{Scheme: scheme, Path: p}).String()
}

func (v *validator) objects() {
	for key, n := range map[string]int{
		"reads_per_minute": v.Objects.ReadsPerMinute, "writes_per_minute": v.Objects.WritesPerMinute, "lists_per_minute": v.Objects.ListsPerMinute,
		"deletes_per_minute": v.Objects.DeletesPerMinute, "writes_per_day": v.Objects.WritesPerDay,
	} {
		if n < 0 {
			v.complain(fault.BadValue, "objects."+key, "is %d, want 0 (no limit) or more", n)
		}
	}
	if v.Objects.URL == "" {
		return
	}
	if why := objectURL(v.Objects.URL); why != "" {
		v.complain(fault.ObjectsURL, "objects.url", "%s", why)
	}
}

// objectURL says why the URL cannot name an object store, or "".
func objectURL(text string) string {
	u, err := address.URL(text)
	switch {
	case err != nil:
		return err.Error()
	case u.Scheme == "file" && (u.Host != "" || len(u.Path) < 2):
		return "is not absolute, want file:///absolute/dir"
	case u.Scheme == "s3" && u.Host == "", u.Scheme == "gs" && u.Host == "":
		return fmt.Sprintf("names no bucket, want %s://bucket/prefix", u.Scheme)
	case !slices.Contains([]string{"file", "s3", "gs", "mem"}, u.Scheme):
		return fmt.Sprintf("has %s, want file, s3, gs or mem", schemeOf(text))
	}
	return ""
}

func (v *validator) listen() {
	host, port, err := net.SplitHostPort(v.Listen)
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n > 65535 {
		v.complain(fault.BadValue, "listen", "is %.80q, want host:port such as 127.0.0.1:7070", v.Listen)
		return
	}
	if (v.API.TLS.Cert == "") != (v.API.TLS.Key == "") {
		v.complain(fault.AccessFile, "api.tls", "needs both cert and key: only one is set").
			Hint("set api.tls.cert and api.tls.key, or neither")
	}
	if (v.API.TLS.ClientCert == "") != (v.API.TLS.ClientKey == "") {
		v.complain(fault.AccessFile, "api.tls", "needs both client_cert and client_key: only one is set").
			Hint("set api.tls.client_cert and api.tls.client_key, or neither")
	}
	if v.API.TLS.ClientCA != "" && v.API.TLS.Cert == "" {
		v.complain(fault.AccessFile, "api.tls.client_ca", "is set without api.tls.cert: a listener without TLS gets no client certificates")
	}
	v.advertise()
	v.proxies()
	if n := v.API.MaxConnections; n < 0 {
		v.complain(fault.BadValue, "api.max_connections", "is %d, want 0 (derived from the available memory) or more", n)
	}
	if n := v.API.MaxInFlight; n < 0 || n > 0 && n < leastInFlight {
		v.complain(fault.BadValue, "api.max_in_flight", "is %d, want 0 (derived from the available memory) or at least %d", n, leastInFlight)
	}
	secured := v.API.TLS.Cert != "" && v.API.TokensFile != ""
	if loopback(host) || v.Insecure || secured || !v.in.Serving {
		return
	}
	v.complain(fault.OpenListen, "listen", "is %s, which is not a loopback address, and %s", v.Listen, v.missingSettings()).
		Because("anyone who reaches that address could read along, or do everything that this node can; nothing was started.")
}

// proxies checks which proxies are believed. A mistake here must not let strangers name themselves.
func (v *validator) proxies() {
	for _, p := range v.API.Proxies {
		if name, ok := strings.CutPrefix(p, "certificate:"); ok {
			if name == "" || v.API.TLS.ClientCA == "" {
				v.complain(fault.BadValue, "api.proxies", "has %.80q, which needs a name and api.tls.client_ca", p)
			}
			continue
		}
		_, bad := netip.ParseAddr(p)
		prefix, badPrefix := netip.ParsePrefix(p)
		if bad != nil && (badPrefix != nil || prefix.Bits() == 0) {
			v.complain(fault.BadValue, "api.proxies", "has %.80q, want an address such as 10.0.0.7, a network such as 10.0.0.0/24 or certificate:NAME", p)
		}
	}
	notInHeader := func(r rune) bool { return notPrintable(r) || strings.ContainsRune(" :,;", r) }
	if h := v.API.UserHeader; strings.ContainsFunc(h, notInHeader) || strings.EqualFold(h, "Authorization") || strings.EqualFold(h, "Cookie") {
		v.complain(fault.BadValue, "api.user_header", "is %.80q, want the name of a header such as X-Forwarded-User", h)
	}
}

func (v *validator) advertise() {
	if v.Advertise == "" {
		return
	}
	host, port, err := net.SplitHostPort(v.Advertise)
	n, bad := strconv.ParseUint(port, 10, 16)
	ip, _ := netip.ParseAddr(host)
	if err != nil || bad != nil || n == 0 || host == "" || ip.IsUnspecified() || strings.ContainsFunc(host, func(r rune) bool { return notPrintable(r) || r == ' ' || r == '/' }) {
		v.complain(fault.BadValue, "advertise", "is %.80q, want the host:port by which other nodes reach this one, such as 10.0.0.7:7070", v.Advertise)
	}
}

// leastInFlight is the minimum of api.max_in_flight. A lower limit would refuse ordinary calls.
const leastInFlight = 1 << 20

// missingSettings names the settings that an open listener lacks.
func (v *validator) missingSettings() string {
	var out []string
	if v.API.TLS.Cert == "" {
		out = append(out, "api.tls.cert and api.tls.key are not set (no encryption)")
	}
	if v.API.TokensFile == "" {
		out = append(out, "api.tokens_file is not set (no authentication)")
	}
	return strings.Join(out, ", and ")
}

// Loopback reports whether an address, host:port or a URL, is reachable only from this machine.
func Loopback(address string) bool {
	_, rest, isURL := strings.Cut(address, "://")
	if isURL {
		address, _, _ = strings.Cut(rest, "/")
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = strings.Trim(address, "[]")
	}
	return loopback(host)
}

func loopback(host string) bool {
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// timingPaths maps the names that lease.Timing uses to keys.
func timingPaths() map[string]string {
	out := map[string]string{}
	for _, k := range Keys() {
		section, name, _ := strings.Cut(k.Path, ".")
		if section == "coordinator" || section == "daemons" && k.Type == "duration" {
			out[name] = k.Path
		}
	}
	return out
}

var timingName = regexp.MustCompile(`[a-z]+(?:_[a-z]+)+`)

// timing turns each contradiction that lease.Timing reports into a fault with the origins of the values.
func (v *validator) timing() {
	if v.broken {
		return
	}
	keys := timingPaths()
	for _, err := range split(v.Timing().Validate()) {
		var paths, from []string
		for _, name := range timingName.FindAllString(err.Error(), -1) {
			if p := keys[name]; p != "" && !slices.Contains(paths, p) {
				paths = append(paths, p)
				from = append(from, fmt.Sprintf("%s (%s)", p, v.origin(p)))
			}
		}
		f := fault.New(fault.TimingClash, "%s", err.Error())
		if len(from) > 0 {
			f.Why = "the values come from: " + strings.Join(from, ", ")
		}
		for _, p := range paths {
			if o := v.origin(p); o.place.doc != nil {
				f.What = o.place.String() + ": " + f.What
				f.Excerpt = o.place.doc.fault(f.Code, o.place, "", "").Excerpt
				break
			}
		}
		v.faults = append(v.faults, f)
	}
}

// split returns the errors that were joined.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []error
		for _, e := range joined.Unwrap() {
			out = append(out, split(e)...)
		}
		return out
	}
	return []error{err}
}

// The limits of queue.write_budget.
const (
	minWrites = 0.1
	maxWrites = 10_000
)

func (v *validator) queue() {
	if g := v.Queue.MinGap; g != "auto" {
		if d, err := parseDuration(g); err != nil || d < 0 {
			v.complain(fault.BadValue, "queue.min_gap", "is %q, want auto or a duration such as 250ms", g)
		}
	}
	if b := v.Queue.WriteBudget; b != "auto" && b != "unlimited" {
		if n, err := strconv.ParseFloat(b, 64); err != nil || !(n >= minWrites && n <= maxWrites) {
			v.complain(fault.BadValue, "queue.write_budget", "is %q, want auto, unlimited or a number of writes per second, %v to %v", b, minWrites, maxWrites)
		}
	}
	if d := v.Queue.VisibilityTimeout; d <= 0 {
		v.complain(fault.BadValue, "queue.visibility_timeout", "is %v, want more than 0", d)
	}
	if d := v.Queue.DedupWindow; d < 0 {
		v.complain(fault.BadValue, "queue.dedup_window", "is %v, want 0 or more", d)
	}
	if n := v.Queue.MaxShards; n < 1 {
		v.complain(fault.BadValue, "queue.max_shards", "is %d, want 1 or more", n)
	}
	if n := v.Queue.MetricQueues; n < 1 {
		v.complain(fault.BadValue, "queue.metric_queues", "is %d, want 1 or more", n)
	}
}

func (v *validator) execs() {
	seen := map[string]int{}
	for i, e := range v.Daemons.Exec {
		at := item(execPath, i)
		if first, twice := seen[e.ID]; twice && e.ID != "" {
			v.complain(fault.BadDaemon, v.near(at, "id"), "registers %s a second time; %s has it already", e.ID, item(execPath, first))
			continue
		}
		seen[e.ID] = i
		v.exec(at, e)
	}
}

// specField matches the field that an error of daemon.Spec is about.
var specField = regexp.MustCompile(`^daemon \S+: ([a-z_]+) is `)

func (v *validator) exec(at string, e Exec) {
	for _, err := range split(e.Spec().Validate()) {
		key := "id"
		if name := specField.FindStringSubmatch(err.Error()); name != nil {
			key = name[1]
		}
		v.complain(fault.BadDaemon, v.near(at, key), "cannot be declared: %v", err)
	}
	v.timeouts(at, e)
	if strings.HasPrefix(e.ID, daemon.Reserved) {
		v.complain(fault.BadDaemon, v.near(at, "id"), "is %s: the prefix %s is reserved for built-in daemons", e.ID, daemon.Reserved)
	}
	v.schedule(at, e)
	if e.Instances == 0 && v.isSet(at, "instances") {
		v.complain(fault.BadDaemon, v.near(at, "instances"), "is 0, want 1 to %d (to stop a daemon, list it in daemons.disabled or remove it)", daemon.MaxInstances)
	}
	switch {
	case e.Keyed && v.isSet(at, "instances"):
		v.complain(fault.BadDaemon, v.near(at, "instances"), "is %d, but daemon %s is keyed: its keys say how many units it has", e.Instances, e.ID)
	case e.Instances == daemon.Keyed && !e.Keyed:
		v.complain(fault.BadDaemon, v.near(at, "instances"), "is %d, want 1 to %d (for one unit for each key: keyed: true)", e.Instances, daemon.MaxInstances)
	}
	if len(e.Command) == 0 || e.Command[0] == "" {
		v.complain(fault.BadDaemon, v.near(at, "command"), "of daemon %s has no program to run, want a list such as [\"/usr/bin/worker\", \"--quiet\"]", e.ID)
	}
	if strings.ContainsRune(e.Dir+strings.Join(e.Command, ""), 0) {
		v.complain(fault.BadDaemon, at, "has a zero byte in command or dir")
	}
	for _, name := range sortedKeys(e.Env) {
		switch {
		case !validEnv.MatchString(name):
			v.complain(fault.BadDaemon, v.near(at, "env"), "has %q, which is not the name of a variable", name)
		case slices.Contains(givenEnv, name):
			v.complain(fault.BadDaemon, v.near(at, "env"), "sets %s, which emitd sets for the command itself", name)
		case strings.ContainsRune(e.Env[name], 0):
			v.complain(fault.BadDaemon, v.near(at, "env"), "has a zero byte in %s", name)
		}
	}
	for _, name := range e.InheritEnv {
		if !exec.ValidPattern(name) {
			v.complain(fault.BadDaemon, v.near(at, "inherit_env"), "has %q, which is neither the name of a variable nor a prefix followed by *", name)
		}
	}
}

// timeouts checks what an exec daemon has instead of the cluster's timeouts. If those contradict each other already, timing
// says so.
func (v *validator) timeouts(at string, e Exec) {
	t := v.Timing()
	if v.broken || t.Validate() != nil || e.Spec().Validate() != nil {
		return
	}
	for _, err := range split(t.Of(time.Duration(e.AcknowledgeTimeout), time.Duration(e.DrainTimeout)).Validate()) {
		key, _, _ := strings.Cut(err.Error(), " ")
		v.complain(fault.BadDaemon, v.near(at, key), "cannot be declared: daemon %s: %v", e.ID, err)
	}
}

// schedule checks the schedule of an exec daemon, if any of its keys is set.
func (v *validator) schedule(at string, e Exec) {
	keys := keyNames(reflect.TypeFor[schedule]())
	set := slices.DeleteFunc(keys, func(key string) bool { return !v.isSet(at, "schedule."+key) })
	if len(set) == 0 {
		return
	}
	if !v.isSet(at, "schedule.every") && !v.isSet(at, "schedule.cron") {
		v.complain(fault.BadDaemon, join(at, "schedule."+set[0]), "of daemon %s needs a schedule: set every or cron beside it", e.ID)
		return
	}
	p := e.Schedule.periodic()
	p.Do = func(context.Context, *daemon.Assignment, time.Time) error { return nil } // the command
	if err := p.Validate(); err != nil {
		v.complain(fault.BadDaemon, join(at, "schedule."+set[0]), "of daemon %s: %v", e.ID, err)
	}
	if err := scheduling.CheckStall(time.Duration(e.StallTimeout)); err != nil {
		v.complain(fault.BadDaemon, v.near(at, "stall_timeout"), "cannot be declared: daemon %s: %v", e.ID, err)
	}
}

// givenEnv are the variables that every exec daemon gets.
var givenEnv = []string{"EMITD_DAEMON", "EMITD_UNIT", "EMITD_GENERATION", "EMITD_TERM", "EMITD_NODE", "EMITD_DUE"}

// isSet reports whether the key of an entry was set in some layer.
func (v *validator) isSet(at, key string) bool {
	_, set := v.origins[join(at, key)]
	return set
}

// near returns the path of the entry's key if it is set, otherwise that of the entry. An entry that has no
// origin of its own gets that of its list, so that a fault about it names a place.
func (v *validator) near(at, key string) string {
	if v.isSet(at, key) {
		return join(at, key)
	}
	if _, set := v.origins[at]; !set {
		list, _, _ := strings.Cut(at, "[")
		v.origins[at] = v.origins[list]
	}
	return at
}

// BuiltIn are the IDs that daemons.disabled may name besides those of daemons.exec.
var BuiltIn = []string{"emit:sweeper", "emit:sweeper/outbox", "emit:outbox", "emit:queue"}

func (v *validator) checkDisabled() {
	known := slices.Clone(BuiltIn)
	for _, e := range v.Daemons.Exec {
		known = append(known, e.ID)
	}
	for _, id := range v.Daemons.Disabled {
		if slices.Contains(known, id) || strings.HasPrefix(id, "emit:outbox/") || strings.HasPrefix(id, "emit:queue/") {
			continue
		}
		near := ""
		if n := Nearest(id, known); n != "" {
			near = "; did you mean " + n + "?"
		}
		v.complain(fault.BadValue, "daemons.disabled", "names %q, which this node does not have%s", id, near)
	}
}

// Runs reports whether the daemon is enabled on this node.
func (c Config) Runs(id string) bool {
	return !slices.ContainsFunc(c.Daemons.Disabled, func(d string) bool {
		return d == id || (d == "emit:outbox" || d == "emit:queue") && strings.HasPrefix(id, d+"/")
	})
}
