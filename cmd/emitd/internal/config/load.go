package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/emitd/emitd/internal/admin/fault"
)

// DefaultFile is read if it exists and no other file was named.
const DefaultFile = "/etc/emitd/emitd.yaml"

// FileEnv is the variable that names the config file, as --config does.
const FileEnv = "EMITD_CONFIG"

// Input holds the sources of a configuration.
type Input struct {
	File    string            // --config; empty: FileEnv, then DefaultFile
	Environ []string          // as returned by os.Environ
	Flags   map[string]string // by key path
	// Flagged holds the names under which flags were given, by key path, if they differ from the key's.
	Flagged map[string]string
	// ReadFile reads the config file and secret files; nil means os.ReadFile.
	ReadFile func(string) ([]byte, error)
	// Hostname is the default of node.name; nil means os.Hostname.
	Hostname func() (string, error)
	// Serving says that a node will run. Then a store must be named, and mem:// and an unprotected listener
	// are checked.
	Serving bool
	// Dev says that the program provides its own store.
	Dev bool
	// Preset overrides defaults, by key path. PresetName is shown as the origin of these values.
	Preset     map[string]string
	PresetName string
}

// Layer is the kind of source that a value came from.
type Layer string

// The layers, weakest first.
const (
	FromDefault Layer = "default"
	FromFile    Layer = "file"
	FromEnv     Layer = "env"
	FromFlag    Layer = "flag"
)

// Origin says where a value came from, and its text there.
type Origin struct {
	Layer Layer  `json:"layer"`
	Name  string `json:"name,omitempty"` // "emitd.yaml:9", "EMITD_X", "--x", "profile fast"
	Text  string `json:"value"`          // as shown: without secrets
	place pos
}

// String returns a text such as "env EMITD_X".
func (o Origin) String() string {
	switch {
	case o.Name == "":
		return string(o.Layer)
	case o.Layer == FromDefault:
		return "default (" + o.Name + ")"
	}
	return string(o.Layer) + " " + o.Name
}

// Loaded is a configuration with the origins of its values.
type Loaded struct {
	Config
	// File is the config file that was read, or "".
	File string

	origins map[string][]Origin // by key path; strongest last
}

// Load builds the configuration. Its error is a fault.List with everything that is wrong.
func Load(in Input) (*Loaded, error) {
	in = in.withDefaults()
	l := &loader{in: in, out: &Loaded{origins: map[string][]Origin{}}}
	l.preset()
	l.file()
	l.environ()
	l.flags()
	l.defaults()
	l.faults = append(l.faults, validate(l.out, in, len(l.faults) > 0)...)
	if err := l.faults.Err(); err != nil {
		return nil, err
	}
	return l.out, nil
}

func (in Input) withDefaults() Input {
	if in.ReadFile == nil {
		in.ReadFile = os.ReadFile
	}
	if in.Hostname == nil {
		in.Hostname = os.Hostname
	}
	return in
}

type loader struct {
	in     Input
	out    *Loaded
	faults fault.List
}

func (l *loader) add(f *fault.Fault) { l.faults = append(l.faults, f) }

// note records the origin of the setting's current value.
func (l *loader) note(path string, o Origin, v reflect.Value) {
	if v.IsValid() {
		o.Text = showPath(path, v)
	}
	l.out.origins[path] = append(l.out.origins[path], o)
}

func (l *loader) preset() {
	for _, k := range Keys() {
		if text, ok := l.in.Preset[k.Path]; ok {
			l.set(k, Origin{Layer: FromDefault, Name: l.in.PresetName}, text)
		}
	}
}

// MaxFile bounds the size of the config file.
const MaxFile = 1 << 20

func (l *loader) file() {
	name, named := l.fileName()
	text, err := l.in.ReadFile(name)
	switch {
	case err != nil && !named && errors.Is(err, fs.ErrNotExist):
		return
	case err != nil:
		l.add(fault.New(fault.ConfigRead, "config file cannot be read: %w", err))
		return
	case len(text) > MaxFile:
		l.add(fault.New(fault.ConfigRead, "config file %s has %d bytes, the limit is %d", name, len(text), MaxFile))
		return
	}
	l.out.File = name
	doc, err := parse(filepath.Base(name), string(text), false)
	if doc == nil {
		l.faults = append(l.faults, fault.Of(err)...)
		return
	}
	l.decode(doc, reflect.ValueOf(&l.out.Config).Elem(), FromFile)
}

func (l *loader) fileName() (name string, named bool) {
	if l.in.File != "" {
		return l.in.File, true
	}
	for _, kv := range l.in.Environ {
		if name, value, _ := strings.Cut(kv, "="); name == FileEnv && value != "" {
			return value, true
		}
	}
	return DefaultFile, false
}

func (l *loader) decode(doc *document, v reflect.Value, layer Layer) {
	d := decoder{doc: doc, found: func(path string, p pos, v reflect.Value) {
		l.note(path, Origin{Layer: layer, Name: fmt.Sprintf("%s:%d", doc.name, p.line), place: p}, v)
	}}
	d.section(doc.root, v, "")
	l.faults = append(l.faults, d.faults...)
}

// environ applies the EMITD_* variables in the order of their names.
func (l *loader) environ() {
	values := map[string]string{}
	for _, kv := range l.in.Environ {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "EMITD_") && value != "" && !ignoredEnv(name) {
			values[name] = value
		}
	}
	known := map[string]Key{}
	for _, k := range Keys() {
		known[k.Env()] = k
	}
	for _, name := range sortedKeys(values) {
		if k, ok := known[name]; ok {
			l.set(k, Origin{Layer: FromEnv, Name: name}, values[name])
			continue
		}
		k, ok := known[strings.TrimSuffix(name, "_FILE")]
		if !ok || !strings.HasSuffix(name, "_FILE") {
			l.add(unknownEnv(name, known))
			continue
		}
		if _, twice := values[k.Env()]; twice {
			l.add(fault.New(fault.SecretFile, "%s and %s are both set: set only one", k.Env(), name))
			continue
		}
		text, err := l.in.ReadFile(values[name])
		if err != nil {
			l.add(fault.New(fault.SecretFile, "%s: %w", name, err))
			continue
		}
		l.set(k, Origin{Layer: FromEnv, Name: name}, strings.TrimRight(string(text), "\r\n"))
	}
}

// ignoredEnv reports whether a variable is not a setting: those that exec daemons are given, those of
// test components, and Kubernetes' service links of a service called emitd.
func ignoredEnv(name string) bool {
	switch name {
	case FileEnv, "EMITD_PORT":
		return true
	}
	if slices.Contains(givenEnv, name) {
		return true
	}
	for _, prefix := range []string{"EMITD_TEST_", "EMITD_SERVICE_", "EMITD_PORT_"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

func unknownEnv(name string, known map[string]Key) *fault.Fault {
	f := fault.New(fault.UnknownEnv, "unknown variable %s", name)
	if near := Nearest(name, append(sortedKeys(known), FileEnv)); near != "" {
		f.What += fmt.Sprintf("; did you mean %s?", near)
	}
	return f
}

func (l *loader) flags() {
	known := map[string]Key{}
	for _, k := range Keys() {
		known[k.Path] = k
	}
	for _, path := range sortedKeys(l.in.Flags) {
		name := l.in.Flagged[path]
		if name == "" {
			name = known[path].Flag()
		}
		l.set(known[path], Origin{Layer: FromFlag, Name: "--" + name}, l.in.Flags[path])
	}
}

// set sets one setting from the text of a variable or flag. Lists, maps and daemons are written in YAML's
// flow form, or shorter as a,b and name=value,name=value.
func (l *loader) set(k Key, o Origin, text string) {
	v := reflect.ValueOf(&l.out.Config).Elem().FieldByIndex(k.index)
	f := reflect.TypeFor[Config]().FieldByIndex(k.index)
	if short, ok := shortForm(v.Addr().Interface(), text); ok {
		if short != nil {
			l.add(fault.New(fault.BadValue, "%s: %s %v", o.Name, k.Path, short))
			return
		}
		l.note(k.Path, o, v)
		return
	}
	switch v.Kind() {
	case reflect.Slice, reflect.Map:
		l.setYAML(k, o, text)
		return
	}
	if err := setText(v, f, text); err != nil {
		l.add(fault.New(fault.BadValue, "%s: %s %v", o.Name, k.Path, err))
		return
	}
	l.note(k.Path, o, v)
}

// shortForm sets a list or map that is written without brackets; ok is false if the text is not one.
func shortForm(to any, text string) (err error, ok bool) {
	text = strings.TrimSpace(text)
	switch to := to.(type) {
	case *[]string:
		if strings.HasPrefix(text, "[") {
			return nil, false
		}
		*to = splitList(text)
		return nil, true
	case *map[string]string:
		if strings.HasPrefix(text, "{") {
			return nil, false
		}
		m := map[string]string{}
		for _, pair := range splitList(text) {
			name, value, eq := strings.Cut(pair, "=")
			if !eq {
				return fmt.Errorf("has %q, want name=value", pair), true
			}
			m[strings.TrimSpace(name)] = strings.TrimSpace(value)
		}
		*to = m
		return nil, true
	}
	return nil, false
}

func splitList(text string) []string {
	out := []string{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

func (l *loader) setYAML(k Key, o Origin, text string) {
	doc, err := parse(o.Name, text, o.Layer == FromEnv)
	if doc == nil {
		l.faults = append(l.faults, fault.Of(err)...)
		return
	}
	d := decoder{doc: doc, found: func(path string, p pos, v reflect.Value) {
		o := o
		o.place = p
		l.note(path, o, v)
	}}
	d.leaf(doc.root, reflect.ValueOf(&l.out.Config).Elem().FieldByIndex(k.index), reflect.TypeFor[Config]().FieldByIndex(k.index), k.Path)
	l.faults = append(l.faults, d.faults...)
}

// defaults sets what no layer has set from the profile, and the defaults of each exec daemon.
func (l *loader) defaults() {
	def := Defaults(l.out.Profile)
	from, to := reflect.ValueOf(def), reflect.ValueOf(&l.out.Config).Elem()
	for _, k := range Keys() {
		o := Origin{Layer: FromDefault, Text: showPath(k.Path, from.FieldByIndex(k.index))}
		if o.Text != showPath(k.Path, reflect.ValueOf(Defaults("default")).FieldByIndex(k.index)) {
			o.Name = "profile " + def.Profile
		}
		if _, set := l.out.origins[k.Path]; !set {
			to.FieldByIndex(k.index).Set(from.FieldByIndex(k.index))
		}
		l.out.origins[k.Path] = append([]Origin{o}, l.out.origins[k.Path]...)
	}
	if l.out.Node.Name == "" {
		name, err := l.in.Hostname()
		if err != nil {
			l.add(fault.New(fault.BadValue, "node.name is not set and the host has no name: %w", err))
		}
		l.out.Node.Name = name
		l.note("node.name", Origin{Layer: FromDefault, Name: "host name"}, reflect.ValueOf(name))
	}
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
