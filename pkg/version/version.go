// Package version knows which build of the program this is.
package version

import "runtime/debug"

// version and commit are set by the linker: see the Makefile and .goreleaser.yaml.
var version, commit string

// String returns the version of this build: the tag that the linker was given, else the one that
// `go install module@version` recorded, else "dev".
func String() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "dev"
}

// Commit returns the git commit of this build, "" where nobody recorded it.
func Commit() string {
	if commit != "" {
		return commit
	}
	info, _ := debug.ReadBuildInfo()
	if info == nil {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return ""
}
