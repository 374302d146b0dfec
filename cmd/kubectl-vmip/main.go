// Command kubectl-vmip gives KubeVirt virtual machines fixed IP addresses.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	_ "k8s.io/client-go/plugin/pkg/client/auth" // logins of clouds

	"github.com/kubectl-vmip/kubectl-vmip/pkg/cli"
	"github.com/kubectl-vmip/kubectl-vmip/pkg/cmd"
)

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel(cli.ErrInterrupted)
		<-signals
		os.Exit(cli.ExitInterrupted)
	}()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(cmd.Execute(ctx, streams, os.Args[1:]))
}
