package main

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// What krew's validator does not look at, and the reviewers of its index do.
func TestManifest(t *testing.T) {
	text, err := render("../../.krew.yaml", "v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	var plugin struct {
		Metadata struct{ Name string }
		Spec     struct {
			Version, ShortDescription, Description string
			Platforms                              []struct {
				Selector         struct{ MatchLabels map[string]string }
				URI, Sha256, Bin string
			}
		}
	}
	if err := yaml.Unmarshal([]byte(text), &plugin); err != nil {
		t.Fatal(err)
	}
	s := plugin.Spec
	if plugin.Metadata.Name != "vmip" || s.Version != "v1.2.3" {
		t.Errorf("%s %s", plugin.Metadata.Name, s.Version)
	}
	if n := len(s.ShortDescription); n == 0 || n > 50 {
		t.Errorf("the short description has %d characters, 50 may be", n)
	}
	for line := range strings.Lines(s.Description) {
		if len(line) > 81 {
			t.Errorf("line of %d characters: %s", len(line)-1, line)
		}
	}
	want := map[string]bool{}
	for _, p := range s.Platforms {
		os, arch := p.Selector.MatchLabels["os"], p.Selector.MatchLabels["arch"]
		want[os+"/"+arch] = true
		ext, bin := ".tar.gz", "kubectl-vmip"
		if os == "windows" {
			ext, bin = ".zip", "kubectl-vmip.exe"
		}
		uri := "https://github.com/kubectl-vmip/kubectl-vmip/releases/download/v1.2.3/kubectl-vmip_v1.2.3_" + os + "_" + arch + ext
		if p.URI != uri || p.Bin != bin || len(p.Sha256) != 64 {
			t.Errorf("%s/%s is %s with %s", os, arch, p.URI, p.Bin)
		}
	}
	if len(want) != 6 || len(s.Platforms) != 6 {
		t.Errorf("platforms are %v", want)
	}
}
