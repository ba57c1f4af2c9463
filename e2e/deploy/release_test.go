package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goreleaser/goreleaser/v2/pkg/config"
)

const repository = "../.."

// TestRelease reads the configuration of a release as goreleaser does, which accepts no unknown key, and compares it
// with the repository.
func TestRelease(t *testing.T) {
	t.Parallel()
	project, err := config.Load(repository + "/.goreleaser.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(project.Builds) != 1 || len(project.Archives) != 1 || len(project.DockersV2) != 1 {
		t.Fatalf("%d builds, %d archives, %d images", len(project.Builds), len(project.Archives), len(project.DockersV2))
	}
	build := project.Builds[0]
	platforms := []string{"linux", "darwin", "windows", "amd64", "arm64"}
	if got := append(slices.Clone(build.Goos), build.Goarch...); !slices.Equal(got, platforms) {
		t.Errorf("it builds for %v, want %v", got, platforms)
	}
	if !slices.Contains(build.Env, "CGO_ENABLED=0") || !slices.Contains(build.Flags, "-trimpath") {
		t.Errorf("the binaries are not static, or have paths of the machine: %v, %v", build.Env, build.Flags)
	}
	there(t, build.Main)
	for _, f := range project.Archives[0].Files {
		there(t, f.Source)
	}
	if len(project.SBOMs) == 0 || len(project.Signs) == 0 || len(project.DockerSigns) == 0 || project.Signs[0].Artifacts != "checksum" {
		t.Error("an SBOM or a signature is missing")
	}

	image := project.DockersV2[0]
	there(t, image.Dockerfile)
	file := text(t, repository+"/"+image.Dockerfile)
	for _, flag := range image.Flags {
		if stage, ok := strings.CutPrefix(flag, "--target="); ok && !strings.Contains(file, " AS "+stage+"\n") {
			t.Errorf("%s has no stage %s", image.Dockerfile, stage)
		}
	}
	if !strings.Contains(file, "COPY $TARGETPLATFORM/"+project.ProjectName+" ") {
		t.Errorf("%s does not copy the binary that the release has built", image.Dockerfile)
	}
	if len(image.Images) != 1 || !strings.Contains(text(t, folder+"/helm/emitd/values.yaml"), "repository: "+image.Images[0]+"\n") {
		t.Errorf("the chart uses another image than %v", image.Images)
	}
	for _, name := range regexp.MustCompile(`blob/\{\{ \.Tag \}\}/([\w./-]+)`).FindAllStringSubmatch(project.Release.Header, -1) {
		there(t, name[1])
	}

	// The workflow runs the version of goreleaser that has read the file here.
	used := regexp.MustCompile(`goreleaser/v2 (v\S+)`).FindStringSubmatch(text(t, "../go.mod"))
	if used == nil || !strings.Contains(text(t, repository+"/.github/workflows/release.yaml"), "version: "+used[1]+"\n") {
		t.Errorf("the workflow of releases runs another goreleaser than %v of e2e/go.mod", used)
	}
}

// TestReleaseIsStrict: a misspelled key is an error.
func TestReleaseIsStrict(t *testing.T) {
	t.Parallel()
	wrong := strings.Replace(text(t, repository+"/.goreleaser.yaml"), "mod_timestamp:", "mod_time:", 1)
	if _, err := config.LoadReader(strings.NewReader(wrong)); err == nil {
		t.Error("an unknown key is accepted")
	}
}

func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// there fails the test if the repository has no such file.
func there(t *testing.T, name string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(repository, name)); err != nil {
		t.Errorf("the release needs %s: %v", name, err)
	}
}
