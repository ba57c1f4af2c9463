package house

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// workflow is what a file of .github/workflows may say. An unknown key is an error, so a misspelled one is found.
type workflow struct {
	Name        string            `yaml:"name"`
	On          map[string]any    `yaml:"on"`
	Permissions map[string]string `yaml:"permissions"`
	Concurrency map[string]any    `yaml:"concurrency"`
	Jobs        map[string]job    `yaml:"jobs"`
}

type job struct {
	Uses        string            `yaml:"uses"`
	If          string            `yaml:"if"`
	Needs       []string          `yaml:"needs"`
	RunsOn      string            `yaml:"runs-on"`
	Timeout     int               `yaml:"timeout-minutes"`
	Permissions map[string]string `yaml:"permissions"`
	Environment string            `yaml:"environment"`
	Steps       []step            `yaml:"steps"`
}

type step struct {
	Name string            `yaml:"name"`
	If   string            `yaml:"if"`
	Uses string            `yaml:"uses"`
	With map[string]any    `yaml:"with"`
	Env  map[string]string `yaml:"env"`
	Run  string            `yaml:"run"`
}

var (
	pinned   = regexp.MustCompile(`^[\w.-]+(/[\w.-]+)+@[0-9a-f]{40}$`)
	makes    = regexp.MustCompile(`\bmake (\S+)`)
	pathLike = regexp.MustCompile(`^[\w.-]*/?([\w.-]+/)*[\w-]+\.(yaml|yml|md|mod|sum|go|service)$`)
)

// TestWorkflows: every workflow can be read, names only targets, files and jobs that exist, pins each action by the
// hash of a commit with its version beside it, and gives its jobs a time limit and no more rights than it names.
func TestWorkflows(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, ".github", "workflows", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflow was found: %v", err)
	}
	makefile := read(t, "Makefile")
	for _, file := range files {
		name := ".github/workflows/" + filepath.Base(file)
		for _, problem := range workflowProblems(read(t, name), makefile) {
			t.Errorf("%s: %s", name, problem)
		}
	}
}

// TestWorkflowsFinds: the check finds each kind of mistake.
func TestWorkflowsFinds(t *testing.T) {
	t.Parallel()
	good := read(t, ".github/workflows/ci.yaml")
	for what, change := range map[string][2]string{
		"a misspelled key":     {"runs-on:", "run-on:"},
		"an unknown target":    {"make test\n", "make tests\n"},
		"a missing file":       {"make cross\n", "cat deploy/absent.yaml\n"},
		"an action by its tag": {"checkout@9c091bb21b7c1c1d1991bb908d89e4e9dddfe3e0 # v7.0.0", "checkout@v7"},
		"a hash alone":         {"fe3e0 # v7.0.0", "fe3e0"},
		"no time limit":        {"    timeout-minutes: 60\n", ""},
		"no permissions":       {"permissions:\n  contents: read\n", ""},
		"another Go":           {`go-version: "1.26"`, `go-version: "1.25"`},
	} {
		if !strings.Contains(good, change[0]) {
			t.Fatalf("%s: ci.yaml has no %q", what, change[0])
		}
		if len(workflowProblems(strings.ReplaceAll(good, change[0], change[1]), read(t, "Makefile"))) == 0 {
			t.Errorf("%s is not found", what)
		}
	}
}

func workflowProblems(text, makefile string) (problems []string) {
	var w workflow
	if err := yaml.UnmarshalWithOptions([]byte(text), &w, yaml.Strict()); err != nil {
		return []string{err.Error()}
	}
	add := func(format ...string) { problems = append(problems, strings.Join(format, " ")) }
	if w.Name == "" || len(w.On) == 0 || len(w.Jobs) == 0 || len(w.Permissions) == 0 {
		add("it has no name, event, job or permissions")
	}
	for name, j := range w.Jobs {
		for _, other := range j.Needs {
			if _, ok := w.Jobs[other]; !ok {
				add("job", name, "needs", other, "which is not there")
			}
		}
		if j.Uses != "" && !exists(j.Uses) {
			add("job", name, "uses", j.Uses, "which is not there")
		}
		if j.Uses == "" && (j.RunsOn == "" || j.Timeout == 0 || len(j.Steps) == 0) {
			add("job", name, "has no machine, time limit or steps")
		}
		for _, s := range j.Steps {
			problems = append(problems, s.problems(text, makefile)...)
		}
	}
	return problems
}

func (s step) problems(text, makefile string) (problems []string) {
	if (s.Uses == "") == (s.Run == "") {
		return []string{"a step must have either uses or run: " + s.Name + s.Uses}
	}
	if s.Uses != "" && !pinned.MatchString(s.Uses) {
		problems = append(problems, s.Uses+" is not pinned by the hash of a commit")
	}
	if s.Uses != "" && !strings.Contains(text, s.Uses+" # v") {
		problems = append(problems, s.Uses+" has no version beside it")
	}
	if v, ok := s.With["go-version"]; ok && v != "1.26" {
		problems = append(problems, "another version of Go than that of go.mod and deploy/Dockerfile")
	}
	for _, m := range makes.FindAllStringSubmatch(s.Run, -1) {
		if !strings.Contains(makefile, "\n"+m[1]+":") {
			problems = append(problems, "make "+m[1]+" is no target of the Makefile")
		}
	}
	for _, word := range strings.Fields(s.Run) {
		if pathLike.MatchString(word) && !exists(word) {
			problems = append(problems, word+" is not there")
		}
	}
	return problems
}

func exists(name string) bool {
	_, err := os.Stat(filepath.Join(root, filepath.FromSlash(name)))
	return err == nil
}

// TestGoVersions: the image, the workflows' check and go.mod name the same Go.
func TestGoVersions(t *testing.T) {
	t.Parallel()
	if !strings.Contains(read(t, "go.mod"), "\ngo 1.26.") || !strings.Contains(read(t, "deploy/Dockerfile"), " golang:1.26 ") {
		t.Error("go.mod or deploy/Dockerfile names another Go than 1.26: change go-version in this test and in the workflows, too")
	}
}

// TestDependabot: each folder that is kept up to date has what it names, and each module is kept up to date.
func TestDependabot(t *testing.T) {
	t.Parallel()
	var config struct {
		Version int `yaml:"version"`
		Updates []struct {
			Ecosystem   string         `yaml:"package-ecosystem"`
			Directory   string         `yaml:"directory"`
			Directories []string       `yaml:"directories"`
			Schedule    map[string]any `yaml:"schedule"`
			Groups      map[string]any `yaml:"groups"`
		} `yaml:"updates"`
	}
	if err := yaml.UnmarshalWithOptions([]byte(read(t, ".github/dependabot.yml")), &config, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	has := map[string]string{"gomod": "go.mod", "npm": "package-lock.json", "github-actions": ".github/workflows", "docker": "Dockerfile"}
	var modules []string
	for _, u := range config.Updates {
		for _, folder := range append(u.Directories, u.Directory) {
			if folder != "" && (has[u.Ecosystem] == "" || !exists(folder+"/"+has[u.Ecosystem])) {
				t.Errorf("%s in %s: there is no %s", u.Ecosystem, folder, has[u.Ecosystem])
			}
		}
		if u.Ecosystem == "gomod" {
			modules = u.Directories
		}
	}
	for _, folder := range []string{"/", "/e2e", "/tools"} {
		if !slices.Contains(modules, folder) {
			t.Errorf("the module in %s is not kept up to date", folder)
		}
	}
}
