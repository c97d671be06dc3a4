# bash completion of resurgo. The program itself knows the words that may come next.

_resurgo() {
    local rest=${COMP_LINE:0:COMP_POINT} blanks word line start kind i
    local -a words=()
    # bash also cuts words at = and :, so they are put together again.
    for ((i = 0; i <= COMP_CWORD; i++)); do
        blanks=${rest%%[![:space:]]*}
        rest=${rest:${#blanks}}
        word=${COMP_WORDS[i]}
        [[ $i -lt $COMP_CWORD ]] || word=$rest
        rest=${rest:${#word}}
        if [[ $i -eq 0 || -n $blanks ]]; then
            words+=("$word")
        else
            words[${#words[@]} - 1]+=$word
        fi
    done
    word=${words[${#words[@]} - 1]}
    # bash replaces only what comes after its last cut.
    start=
    [[ $word != -*=* || $COMP_WORDBREAKS != *=* ]] || start=${word%%=*}=
    COMPREPLY=()
    {
        IFS= read -r kind || return
        while IFS=$'\t' read -r line _; do
            COMPREPLY+=("${line#"$start"}")
        done
    } < <("${words[0]/#\~/$HOME}" complete-words "${words[@]:1}" 2>/dev/null)
    [[ $word != -*=* ]] || word=${word#*=}
    case $kind in
    files) kind=(-f) ;;
    directories) kind=(-d) ;;
    programs) kind=(-c -f) ;;
    *) return ;;
    esac
    compopt -o filenames 2>/dev/null
    while IFS= read -r line; do
        COMPREPLY+=("$line")
    done < <(compgen "${kind[@]}" -- "$word" | sort -u)
}
complete -F _resurgo resurgo
