package cmd

// The help leaves the flags that all commands have to `options`, as kubectl's does.
const (
	helpTemplate = `{{with or .Long .Short}}{{. | trimTrailingWhitespaces}}

{{end}}{{.UsageString}}`

	usageTemplate = `{{if .HasExample}}Examples:
{{.Example}}

{{end}}{{$cmds := .Commands}}{{range $group := .Groups}}{{.Title}}{{range $cmds}}{{if and (eq .GroupID $group.ID) (or .IsAvailableCommand (eq .Name "help"))}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}

{{end}}{{if and .HasAvailableSubCommands (not .AllChildCommandsHaveGroup)}}Available Commands:{{range $cmds}}{{if and (not .GroupID) .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}

{{end}}{{if and .HasParent .HasAvailableLocalFlags}}Options:
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}

{{end}}Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND [flags]{{else}}{{.UseLine}}{{end}}
{{if .HasAvailableSubCommands}}
Use "{{.CommandPath}} COMMAND --help" for more about a command.{{end}}
Use "{{.Root.DisplayName}} options" for the flags that all commands have.
`
)
