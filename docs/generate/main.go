// Command generate writes the reference of all commands as Markdown, one file a command.
package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate DIRECTORY")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func generate(dir string) error {
	root := cmd.New(cli.NewEnv(genericiooptions.IOStreams{In: strings.NewReader(""), Out: io.Discard, ErrOut: io.Discard}))
	root.DisableAutoGenTag = true
	if err := empty(dir); err != nil {
		return err
	}
	// The flags that all commands have stand on the root's page only.
	if err := write(dir, root); err != nil {
		return err
	}
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) { f.Hidden = true })
	return below(dir, root)
}

// empty removes the pages of commands that may be gone.
func empty(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return err
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func below(dir string, c *cobra.Command) error {
	for _, sub := range c.Commands() {
		if !sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := write(dir, sub); err != nil {
			return err
		}
		if err := below(dir, sub); err != nil {
			return err
		}
	}
	return nil
}

// link is the file of a command's page. cobra names links after what users type and wants them
// as file names.
func link(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(path, ".md"), " ", "_") + ".md"
}

func write(dir string, c *cobra.Command) (err error) {
	f, err := os.Create(filepath.Join(dir, link(c.CommandPath())))
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	return doc.GenMarkdownCustom(c, f, link)
}
