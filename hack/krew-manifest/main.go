// Command krew-manifest fills in a .krew.yaml as krew-release-bot does, with checksums of nothing:
// what it prints is for krew's validator.
package main

import (
	"fmt"
	"os"
	"strings"
	"text/template"
)

// nothing is the SHA-256 of no bytes. Zeros would be read as a number.
const nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: krew-manifest TEMPLATE TAG")
		os.Exit(2)
	}
	text, err := render(os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

func render(path, tag string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	funcs := template.FuncMap{"addURIAndSha": func(uri, tag string) (string, error) {
		uri, err := execute("uri", uri, tag, nil)
		return fmt.Sprintf("uri: %s\n    sha256: %s", uri, nothing), err
	}}
	return execute(path, string(raw), tag, funcs)
}

func execute(name, text, tag string, funcs template.FuncMap) (string, error) {
	t, err := template.New(name).Funcs(funcs).Option("missingkey=error").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]string{"TagName": tag})
	return b.String(), err
}
